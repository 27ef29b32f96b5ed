#include "tools/bench_kernels/device.h"

#include <algorithm>
#include <random>

namespace xce::bench {
namespace {

double rounded(DType dtype, float value) {
  if (dtype == DType::kF16) return static_cast<double>(F16(value));
  return dtype == DType::kBf16 ? static_cast<double>(Bf16(value)) : static_cast<double>(value);
}

}  // namespace

Timing timing_of(std::vector<double> ms, int launches) {
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms.front(), ms.back(), static_cast<int>(ms.size()), launches};
}

const std::vector<float>& Values::block() {
  static const std::vector<float> values = [] {
    std::mt19937_64 gen(1);
    std::normal_distribution<float> normal;
    std::vector<float> made(kPeriod);
    for (float& value : made) value = normal(gen);
    return made;
  }();
  return values;
}

Array Array::source(Device& device, DType dtype, int64_t n, uint64_t seed, double scale) {
  Array a;
  a.device_ = &device, a.dtype_ = dtype, a.n_ = n;
  a.values_ = Values(seed * 1000003 % Values::kPeriod, scale);
  a.data_ = device.allocate(a.size_bytes());
  visit_loss_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    std::vector<T> piece(std::min<int64_t>(n, Values::kPeriod));
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = T(a.values_(static_cast<int64_t>(i)));
    for (int64_t at = 0; at < n; at += static_cast<int64_t>(piece.size()))
      device.write(static_cast<T*>(a.data_) + at, piece.data(),
                   std::min<size_t>(piece.size(), static_cast<size_t>(n - at)) * sizeof(T));
  });
  return a;
}

Array Array::filled(Device& device, DType dtype, int64_t n, int byte) {
  Array a;
  a.device_ = &device, a.dtype_ = dtype, a.n_ = n;
  a.data_ = device.allocate(a.size_bytes());
  device.set_bytes(a.data_, byte, a.size_bytes());
  return a;
}

double Array::operator[](int64_t i) const {
  return rounded(dtype_, values_(i));
}

std::vector<double> Array::read(int64_t begin, int64_t count) const {
  std::vector<double> out(count);
  visit_loss_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
    std::vector<T> raw(count);
    device_->read(raw.data(), static_cast<const T*>(data_) + begin, raw.size() * sizeof(T));
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<double>(raw[i]);
  });
  return out;
}

}  // namespace xce::bench
