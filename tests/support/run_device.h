// Devices of the tensor floor for tests. Host code reads and writes their arrays as they are: a GPU's lie in pinned
// host memory.
#pragma once

#include <memory>
#include <string>

#include "src/core/device.h"

namespace xce::test {

inline Device& cpu_device(int threads) {
  static const std::unique_ptr<Device> one = make_cpu_device(1), two = make_cpu_device(2), three = make_cpu_device(3);
  return threads == 1 ? *one : threads == 2 ? *two : *three;
}
// Null where there is none.
inline Device* gpu_device() {
  static const std::unique_ptr<Device> gpu =
      cuda_device_count() > 0 ? make_cuda_device({.host_arrays = true}) : nullptr;
  return gpu.get();
}
inline Device& device_named(const std::string& name) {
  return name == "gpu" ? *gpu_device() : cpu_device(2);
}

}  // namespace xce::test
