#include "src/core/param.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise.h"
#include "src/core/rng.h"

namespace xce {

int ParameterSet::add(Parameter p) {
  XCE_CHECK(p.rows > 0 && p.cols > 0, "a parameter shape above zero for " + p.name, str(p.rows, " x ", p.cols));
  XCE_CHECK(list_.empty() || p.unit >= list_.back().unit, "units in order at " + p.name, p.unit);
  XCE_CHECK(!allocated(), "parameters added before allocate()", p.name);
  int64_t elements = 0, end = 0;
  if (__builtin_mul_overflow(p.rows, p.cols, &elements) || __builtin_add_overflow(size_, elements, &end) ||
      end > kMaxSize)
    throw Error(ErrorCode::kUsage, str("parameter ", p.name, " of shape ", p.rows, " x ", p.cols,
                                       " makes the model larger than ", kMaxSize, " numbers"));
  p.offset = size_;
  size_ += (p.size() + kAlign - 1) / kAlign * kAlign;
  list_.push_back(std::move(p));
  written_.push_back(0);
  return static_cast<int>(list_.size()) - 1;
}

int64_t ParameterSet::count() const {
  int64_t total = 0;
  for (const Parameter& p : list_) total += p.size();
  return total;
}

size_t ParameterSet::bytes() const {
  size_t accum = size_of(accum_dtype(dtype_));
  return static_cast<size_t>(size_) * (4 * accum + (dtype_ == accum_dtype(dtype_) ? 0 : size_of(dtype_)));
}

void ParameterSet::allocate(Memory& memory, ParameterUse use) {
  memory_ = &memory;
  size_t accum_bytes = static_cast<size_t>(size_) * size_of(accum_dtype(dtype_));
  master_ = Buffer(accum_bytes, memory);
  if (dtype_ != accum_dtype(dtype_)) compute_ = Buffer(static_cast<size_t>(size_) * size_of(dtype_), memory);
  if (use == ParameterUse::kInference) return;
  grad_ = Buffer(accum_bytes, memory);
  m_ = Buffer(accum_bytes, memory);
  v_ = Buffer(accum_bytes, memory);
}

void ParameterSet::initialize(uint64_t seed, const CpuExec& host) {
  XCE_CHECK(allocated(), "allocate() before initialize()", "nothing allocated");
  constexpr int64_t kPiece = int64_t{1} << 22, kGrain = 4096;
  visit_dtype(accum_dtype(dtype_), [&]<class T>(std::type_identity<T>) {
    std::vector<T> values;
    for (const Parameter& p : list_) {
      Rng rng(seed, p.name);
      for (int64_t first = 0; first < p.size(); first += kPiece) {
        const int64_t n = std::min(kPiece, p.size() - first);
        values.resize(static_cast<size_t>(n));
        parallel_for(host, n, kGrain, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i)
            values[static_cast<size_t>(i)] = static_cast<T>(static_cast<float>(
                p.init_stddev == 0 ? 1.0 : p.init_stddev * rng.normal(static_cast<uint64_t>(first + i))));
        });
        memory_->copy_in(master(p.offset + first), values.data(), static_cast<size_t>(n) * sizeof(T));
      }
    }
  });
}

void ParameterSet::update_compute(const Exec& exec) {
  if (has_compute_copy())
    run(exec, Convert{.x = master(), .y = compute(), .n = size_, .from = accum_dtype(dtype_), .to = dtype_});
}

void ParameterSet::begin_gradients() {
  written_.assign(list_.size(), 0);
}

bool ParameterSet::claim_gradient(int index) {
  bool accumulate = written_[index];
  written_[index] = 1;
  return accumulate;
}

void ParameterSet::finish_gradients(const Exec& exec) {
  for (size_t i = 0; i < list_.size(); ++i)
    if (!written_[i])
      run(exec, Fill{.y = grad(list_[i].offset), .n = list_[i].size(), .dtype = accum_dtype(dtype_), .value = 0});
}

}  // namespace xce
