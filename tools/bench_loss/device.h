// What bench_loss needs of a device beyond its arrays: how a call is timed, and the matrix products it is set beside.
// device_cpu.cpp, device_cuda.cpp and, in builds without CUDA, device_nocuda.cpp implement it.
#pragma once

#include <functional>
#include <memory>

#include "tools/bench_kernels/device.h"
#include "tools/bench_loss/options.h"

namespace xce::bench {

struct Sample {
  double ms, cpu_ms;  // on the clock, and of all threads' processor time (0: not measured)
};

struct ProductArrays {
  const void *x, *weight;
  void *dx, *dweight;
  DType dweight_dtype;  // fp32: added to
};

class LossDevice {
 public:
  virtual ~LossDevice() = default;
  virtual Device& memory() = 0;  // arrays and what calls run on
  const Exec& exec() { return memory().exec(); }
  // Where no algorithm of a product was raced: null where none ever is.
  virtual const Exec* untuned_exec() = 0;
  // Runs the call while its products are raced.
  virtual void tune(const std::function<void()>& call) = 0;
  virtual std::string plans_text() = 0;
  // One call; on a GPU the median of the later half of as many, back to back, as last `hold_ms`.
  virtual Sample time(const std::function<void()>& call, double hold_ms) = 0;
  // z = x W^T, dx = dz W, dW (+)= dz^T x over whole logits, each by the device's library as most people call it.
  virtual std::function<void()> three_products(const LossShape& shape, DType dtype, bool tf32,
                                               const ProductArrays& arrays) = 0;
};

std::unique_ptr<LossDevice> make_cpu_loss_device(int threads);
std::unique_ptr<LossDevice> make_cuda_loss_device();  // Error without one

}  // namespace xce::bench
