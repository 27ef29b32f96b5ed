// Where a bench's arrays lie and how its launches are timed. device_cpu.cpp, device_cuda.cpp and, in builds without
// CUDA, device_nocuda.cpp implement it.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce::bench {

// Milliseconds of one launch: over rounds of as many launches as fill a stretch, all rounds back to back.
struct Timing {
  double median_ms = 0, low_ms = 0, high_ms = 0;
  int rounds = 0, launches = 0;  // of a round
};
Timing timing_of(std::vector<double> ms_per_launch, int launches);

class Device {
 public:
  virtual ~Device() = default;
  virtual const Exec& exec() const = 0;
  virtual std::string describe() const = 0;
  virtual void* allocate(size_t size_bytes) = 0;  // until release_all; contents undefined
  virtual void release_all() = 0;
  virtual void set_bytes(void* to, int value, size_t size_bytes) = 0;
  virtual void write(void* to, const void* from, size_t size_bytes) = 0;  // from the host
  virtual void read(void* to, const void* from, size_t size_bytes) = 0;   // to the host, when all launches are done
  // A copy inside the device, enqueued: the ceiling of what only moves bytes.
  virtual void copy(void* to, const void* from, size_t size_bytes) = 0;
  // Calls the launches in turns, as long as `sustained_ms` says or, on a CPU, for a fixed number of rounds.
  virtual Timing time(const std::vector<std::function<void()>>& launches, double sustained_ms) = 0;
  // Sets of buffers that launches should go round, so that no cache holds what they read.
  virtual int sets_for(size_t bytes_of_a_set) const = 0;
};

std::unique_ptr<Device> make_cpu_device(int threads);
std::unique_ptr<Device> make_cuda_device();  // Error(kRuntime) without one

// A stretch of one fixed random sequence, near N(0, 1), times `scale`: any element is known on the host.
class Values {
 public:
  Values(uint64_t shift, double scale) : shift_(shift), scale_(static_cast<float>(scale)) {}
  float operator()(int64_t i) const { return block()[(static_cast<uint64_t>(i) + shift_) % kPeriod] * scale_; }

 private:
  static constexpr uint64_t kPeriod = (1 << 22) - 3;
  static const std::vector<float>& block();
  friend class Array;
  uint64_t shift_;
  float scale_;
};

// n elements of a dtype on the device. A source's elements are known here; an output's begin as NaN and are read back.
class Array {
 public:
  static Array source(Device& device, DType dtype, int64_t n, uint64_t seed, double scale = 1);
  static Array output(Device& device, DType dtype, int64_t n) { return filled(device, dtype, n, 0xFF); }
  static Array zeros(Device& device, DType dtype, int64_t n) { return filled(device, dtype, n, 0); }

  void* data() const { return data_; }
  size_t size_bytes() const { return static_cast<size_t>(n_) * size_of(dtype_); }
  double operator[](int64_t i) const;  // of a source: as the device has it
  std::vector<double> read(int64_t begin, int64_t count) const;

 private:
  static Array filled(Device& device, DType dtype, int64_t n, int byte);
  Device* device_ = nullptr;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t n_ = 0;
  Values values_{0, 1};
};

}  // namespace xce::bench
