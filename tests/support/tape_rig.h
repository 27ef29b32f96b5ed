// Runs a small graph of ops on a tape whose memory is poisoned and exactly as large as planned, and checks its
// gradients against finite differences of the scalar sum_i c_i y_i.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "src/autograd/tape.h"
#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce::test {

// An input of the graph: a parameter, or an activation. Values are normal with this deviation.
struct Leaf {
  Shape shape;
  bool parameter = false;
  double stddev = 1;
};

using Values = std::vector<std::vector<double>>;  // per leaf

struct RigResult {
  double scalar = 0;
  std::vector<double> y;
  Values gradients;
};

class TapeRig {
 public:
  using Graph = std::function<Var(Tape&, const std::vector<Var>&)>;

  // With a loss cell, what the graph adds to it is a part of the scalar, and the graph may return an empty Var.
  TapeRig(std::vector<Leaf> leaves, Graph graph, double* loss_cell = nullptr)
      : leaves_(std::move(leaves)), graph_(std::move(graph)), loss_cell_(loss_cell) {}

  Values random_values(DType dtype, uint64_t seed = 1) const {
    Values values;
    for (const Leaf& leaf : leaves_)
      values.push_back(Array::normal(dtype, leaf.shape.size(), seed + values.size(), leaf.stddev).values());
    return values;
  }

  RigResult run(const Values& values, DType dtype, const Exec& exec) const {
    ParameterSet parameters(dtype);
    std::vector<int> index(leaves_.size(), -1);
    for (size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].parameter)
        index[i] = parameters.add({.name = "leaf" + std::to_string(i),
                                   .rows = leaves_[i].shape.rows,
                                   .cols = leaves_[i].shape.cols,
                                   .unit = 0,
                                   .init_stddev = 1});
    parameters.allocate();
    for (size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].parameter)
        write(parameters.master(parameters[index[i]].offset), accum_dtype(dtype), values[i], false);
    parameters.update_compute(exec);

    RigResult result;
    Arena plan;
    {
      Tape dry(exec, plan, parameters);
      play(dry, index, values, result);
      EXPECT_EQ(plan.in_use_bytes(), 0u) << "the plan's memory is released";
    }
    Buffer memory(plan.peak_bytes());
    Arena arena(memory.data(), memory.size_bytes());
    arena.poison_free();
    parameters.begin_gradients();
    Tape tape(exec, arena, parameters);
    play(tape, index, values, result);
    EXPECT_EQ(arena.in_use_bytes(), 0u) << "every value is released at its last use";
    EXPECT_EQ(arena.peak_bytes(), plan.peak_bytes());
    parameters.finish_gradients(exec);
    for (size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].parameter)
        result.gradients[i] =
            read(parameters.grad(parameters[index[i]].offset), accum_dtype(dtype), leaves_[i].shape.size());
    return result;
  }

  // The gradient in fp64 of every leaf agrees with the four-point difference quotient of every element; a zeroed or
  // negated one would not.
  void expect_gradients(uint64_t seed = 1) const {
    Exec exec = cpu_exec(3);
    Values values = random_values(DType::kF64, seed);
    RigResult analytic = run(values, DType::kF64, exec);
    const double h = 1e-3;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      std::vector<double> numeric;
      for (size_t e = 0; e < values[i].size(); ++e) {
        auto at = [&](double step) {
          Values moved = values;
          moved[i][e] += step;
          return run(moved, DType::kF64, cpu_exec(1)).scalar;
        };
        numeric.push_back((8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h));
      }
      EXPECT_LE(relative_l2(analytic.gradients[i], numeric), 1e-8) << "leaf " << i;
      EXPECT_GT(relative_l2(std::vector<double>(numeric.size(), 0.0), numeric), 0.5)
          << "leaf " << i << " has no gradient";
    }
  }

  // In the lower precisions, values and gradients are those of fp64 on the same inputs, up to rounding.
  void expect_dtypes_agree(uint64_t seed = 1) const {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      Values values = random_values(dtype, seed);
      RigResult want = run(values, DType::kF64, cpu_exec(1)), got = run(values, dtype, cpu_exec(3));
      double bar = dtype == DType::kF32 ? 1e-5 : 3e-2;
      EXPECT_LE(relative_l2(got.y, want.y), bar) << name_of(dtype);
      for (size_t i = 0; i < leaves_.size(); ++i)
        EXPECT_LE(relative_l2(got.gradients[i], want.gradients[i]), bar) << name_of(dtype) << " leaf " << i;
    }
  }

  static std::vector<double> read(const void* data, DType dtype, int64_t n) {
    std::vector<double> out(static_cast<size_t>(n));
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(static_cast<const T*>(data)[i]);
    });
    return out;
  }
  static void write(void* data, DType dtype, const std::vector<double>& values, bool accumulate) {
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      T* out = static_cast<T*>(data);
      for (size_t i = 0; i < values.size(); ++i) {
        double value = values[i] + (accumulate ? static_cast<double>(out[i]) : 0.0);
        if constexpr (std::is_same_v<T, Bf16>)
          out[i] = Bf16(static_cast<float>(value));
        else
          out[i] = static_cast<T>(value);
      }
    });
  }
  // The weights c_i of the scalar: of both signs, exact in every type.
  static std::vector<double> coefficients(int64_t n) {
    std::vector<double> c(static_cast<size_t>(n));
    for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<double>(static_cast<int64_t>(i * 5 % 7) - 3) / 4 + 0.125;
    return c;
  }
  // Makes y's gradient grow by c when the backward begins: the root of a graph that is not a loss.
  static void seed_gradient(const Var& y, std::vector<double> c) {
    Tape& tape = y.tape();
    tape.on_backward([&tape, y = tape.gradient_only(y), c = std::move(c)] {
      GradOut dy = tape.grad_out(y);
      if (!tape.planning()) write(dy.data, y.dtype(), c, dy.accumulate);
    });
  }
  // A value from outside; its gradient is copied to `gradient` once it is complete.
  static Var leaf(Tape& tape, Shape shape, const std::vector<double>& values, std::vector<double>* gradient) {
    Var x = tape.make(shape);
    if (!tape.planning()) write(x.data(), x.dtype(), values, false);
    tape.on_backward(x, [&tape, gradient](const Grad& dx) {
      if (!tape.planning()) *gradient = read(Tape::data(dx), dx->dtype, dx->shape.size());
    });
    return x;
  }

 private:
  void play(Tape& tape, const std::vector<int>& index, const Values& values, RigResult& result) const {
    result.gradients.assign(leaves_.size(), {});
    for (size_t i = 0; i < leaves_.size(); ++i)
      result.gradients[i].assign(static_cast<size_t>(leaves_[i].shape.size()), 0.0);
    if (loss_cell_) *loss_cell_ = 0;
    result.scalar = 0;
    {
      std::vector<Var> inputs;
      for (size_t i = 0; i < leaves_.size(); ++i)
        inputs.push_back(index[i] >= 0 ? tape.parameter(index[i])
                                       : leaf(tape, leaves_[i].shape, values[i], &result.gradients[i]));
      Var y = graph_(tape, inputs);
      if (y.rows() > 0) {
        std::vector<double> c = coefficients(y.shape().size());
        if (!tape.planning()) {
          result.y = read(y.data(), y.dtype(), y.shape().size());
          for (size_t i = 0; i < c.size(); ++i) result.scalar += c[i] * result.y[i];
        }
        seed_gradient(y, std::move(c));
      }
    }
    tape.backward();
    if (loss_cell_) result.scalar += *loss_cell_;
  }

  std::vector<Leaf> leaves_;
  Graph graph_;
  double* loss_cell_;
};

}  // namespace xce::test
