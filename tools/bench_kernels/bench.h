// Verifies a job, times it, sets it beside what the device can do, prints a line and keeps a record.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/bench_kernels/device.h"

namespace xce::bench {

// Sizes that jobs are made of.
struct Shapes {
  int64_t rows, hidden, ffn, heads, kv_heads, head_dim, seq_len, vocab, parameters;
  std::vector<std::pair<int64_t, int64_t>> linears;  // in, out
  int64_t gemm_rows, gemm_side;                      // of the product that is the ceiling
  size_t copy_bytes;                                 // of the copy that is the other one
  DType dtype;
  int64_t loss_rows;  // of logits
  std::vector<int64_t> loss_vocabs;
};

enum class Bound { kProduct, kBytes };

struct Job {
  std::string op, shape;
  DType dtype;
  Bound bound;
  double work;  // FLOPs or bytes of a launch
  std::vector<std::function<void()>> launches;
  std::function<double()> error;  // of the first launch's results, once it has run: see Comparison
  double tolerance;
};

// || got - want || / || want ||, not a number as soon as one value is not.
class Comparison {
 public:
  void add(double got, double want) {
    difference2_ += (got - want) * (got - want);
    want2_ += want * want;
  }
  double error() const;

 private:
  double difference2_ = 0, want2_ = 0;
};

class Bench {
 public:
  Bench(Device& device, Shapes shapes, std::string only, double sustained_ms)
      : device_(device), shapes_(std::move(shapes)), only_(std::move(only)), sustained_ms_(sustained_ms) {}
  Device& device() { return device_; }
  const Exec& exec() const { return device_.exec(); }
  const Shapes& shapes() const { return shapes_; }
  bool wants(const std::string& op) const;

  void measure_ceilings();   // prints them; jobs are set beside the last ones
  void run(const Job& job);  // Error(kRuntime) when the result is wrong; then frees the device's arrays
  nlohmann::json record() const;

  // For making jobs.
  Array source(DType dtype, int64_t n, uint64_t seed, double scale = 1) {
    return Array::source(device_, dtype, n, seed, scale);
  }
  Array output(DType dtype, int64_t n) { return Array::output(device_, dtype, n); }
  // make(set) for each set of buffers that launches of this size go round. Set 0 is made last and launched first: the
  // arrays that `make` leaves behind are those to look at.
  template <class F>
  std::vector<std::function<void()>> sets(size_t bytes_of_a_set, F&& make) {
    std::vector<std::function<void()>> launches(device_.sets_for(bytes_of_a_set));
    for (int set = static_cast<int>(launches.size()); set-- > 0;) launches[set] = make(set);
    return launches;
  }
  // Gives args the scratch they ask for.
  template <class Args>
  Args with_workspace(Args args) {
    args.workspace_size_bytes = workspace_bytes(exec(), args);
    args.workspace = args.workspace_size_bytes ? device_.allocate(args.workspace_size_bytes) : nullptr;
    return args;
  }
  template <class Args>
  std::function<void()> launch_of(const Args& args) {
    return [this, args] { xce::run(exec(), args); };
  }

 private:
  Device& device_;
  Shapes shapes_;
  std::string only_;
  double sustained_ms_;
  double product_flops_ = 0, copy_bytes_ = 0;  // a second: the ceilings
  nlohmann::json results_ = nlohmann::json::array(), ceilings_ = nlohmann::json::array();
};

// A few elements to look at of n, the first and the last among them.
std::vector<int64_t> samples(int64_t n, int64_t count);
// Error bound of values that were rounded once to the dtype.
double tolerance_of(DType dtype);

// The jobs, by file.
void linear_jobs(Bench& bench);
void attention_jobs(Bench& bench);
void row_jobs(Bench& bench);  // rmsnorm, swiglu, rope, add, convert, fill
void embedding_jobs(Bench& bench);
void parameter_jobs(Bench& bench);  // adamw, norm2
void loss_jobs(Bench& bench);       // cross-entropy over given logits

}  // namespace xce::bench
