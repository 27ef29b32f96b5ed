// A model's parameters: one flat arena in which each unit (what sharding gathers as one piece) is contiguous, seen in
// three ways: master (what the optimizer updates), compute (what kernels read) and gradient; plus the optimizer's two
// moments. Steps ask for addresses when they run, never keep them: a view may lie elsewhere by then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "src/core/buffer.h"

namespace xce {

struct Parameter {
  std::string name;
  int64_t rows, cols;                       // a vector has rows 1
  int unit;                                 // units are numbered in order of use
  double init_stddev;                       // normal(0, init_stddev) at the start; 0: ones (a norm's weight)
  bool matrix() const { return rows > 1; }  // matrices decay, vectors do not
  int64_t size() const { return rows * cols; }
  int64_t offset = 0;  // into the flat arena, elements
};

enum class ParameterUse {
  kTraining,
  kInference,  // without gradients and moments
};

class ParameterSet {
 public:
  static constexpr int64_t kAlign = 64;  // elements; one weight-decay block never spans two parameters

  // dtype: what kernels compute in.
  explicit ParameterSet(DType dtype) : dtype_(dtype) {}

  static constexpr int64_t kMaxSize = int64_t{1} << 56;  // elements; the bytes of all views stay below 2^62

  // Units must be added in order; returns the parameter's index. kUsage, naming parameter and shape, above kMaxSize.
  int add(Parameter parameter);

  const std::vector<Parameter>& list() const { return list_; }
  const Parameter& operator[](int index) const { return list_[index]; }
  int64_t size() const { return size_; }  // elements with padding
  int64_t count() const;                  // elements without
  size_t bytes() const;                   // of all views and moments, allocated or not
  DType dtype() const { return dtype_; }

  // Zeroed views: compute in dtype (master itself when the types agree), the rest in accum_dtype(dtype).
  void allocate(Memory& memory = host_memory(), ParameterUse use = ParameterUse::kTraining);
  Memory& memory() const { return *memory_; }  // where they were allocated
  // Masters from (seed, name), made on the host: the same for every dtype, device and number of threads.
  void initialize(uint64_t seed, const CpuExec& host);
  void update_compute(const Exec& exec);  // compute = rounded master
  bool allocated() const { return master_.size_bytes() > 0; }

  void* master(int64_t offset = 0) { return at(master_, accum_dtype(dtype_), offset); }
  void* compute(int64_t offset = 0) { return compute_.size_bytes() ? at(compute_, dtype_, offset) : master(offset); }
  void* grad(int64_t offset = 0) { return at(grad_, accum_dtype(dtype_), offset); }
  void* first_moment() { return m_.data(); }
  void* second_moment() { return v_.data(); }
  bool has_compute_copy() const { return compute_.size_bytes() > 0; }

  // Gradients live for one step: the first writer overwrites, later ones accumulate, what nobody wrote is zeroed.
  void begin_gradients();
  bool claim_gradient(int index);  // true: add to it; false: it is yours to overwrite
  void finish_gradients(const Exec& exec);

 private:
  void* at(Buffer& buffer, DType dtype, int64_t offset) {
    return buffer.size_bytes() ? buffer.as<char>() + offset * static_cast<int64_t>(size_of(dtype)) : nullptr;
  }
  std::vector<Parameter> list_;
  std::vector<char> written_;
  int64_t size_ = 0;
  DType dtype_;
  Memory* memory_ = &host_memory();
  Buffer master_, compute_, grad_, m_, v_;
};

}  // namespace xce
