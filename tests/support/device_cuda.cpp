// With a GPU: memory is pinned on the host, where both devices reach it at the same address. Freed blocks are kept by
// size, because pinning takes longer than most tests.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "kernels/base/cuda_check.h"
#include "tests/support/device.h"

namespace xce::test {
namespace {

CudaDevice* gpu() {
  static const std::unique_ptr<CudaDevice> device = []() -> std::unique_ptr<CudaDevice> {
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // read by the driver when it starts
    if (CudaDevice::count() > 0) return std::make_unique<CudaDevice>(0);
    std::puts("no GPU here: only the CPU is tested");
    return nullptr;
  }();
  return device.get();
}

size_t block_bytes(size_t size_bytes) {
  return std::bit_ceil(std::max<size_t>(size_bytes, 256));
}
struct FreeBlocks {
  std::mutex mutex;
  std::multimap<size_t, void*> by_size;
};
// Never destroyed: arrays of static lifetime are released after it would be.
FreeBlocks& free_blocks() {
  static auto* blocks = new FreeBlocks;
  return *blocks;
}

}  // namespace

void* allocate(size_t size_bytes) {
  if (!gpu()) return ::operator new(size_bytes);
  const size_t bytes = block_bytes(size_bytes);
  FreeBlocks& blocks = free_blocks();
  std::lock_guard lock(blocks.mutex);
  void* data = nullptr;
  if (auto found = blocks.by_size.find(bytes); found != blocks.by_size.end()) {
    data = found->second;
    blocks.by_size.erase(found);
  } else {
    XCE_CUDA_CHECK(cudaMallocHost(&data, bytes));
  }
  return data;
}

void release(void* data, size_t size_bytes) {
  if (!gpu()) return ::operator delete(data);
  std::lock_guard lock(free_blocks().mutex);
  free_blocks().by_size.emplace(block_bytes(size_bytes), data);
}

const std::vector<Exec>& gpu_execs() {
  static const std::vector<Exec> execs = gpu() ? std::vector<Exec>{gpu()->exec()} : std::vector<Exec>{};
  return execs;
}

}  // namespace xce::test
