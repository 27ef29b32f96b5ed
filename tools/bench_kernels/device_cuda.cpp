// Rounds are separated by events on the stream and nothing waits between them: the card stays at the clock it can hold.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/cuda_check.h"
#include "tools/bench_kernels/device.h"

namespace xce::bench {
namespace {

constexpr int kRounds = 20;
constexpr double kWarmUpMs = 50;
constexpr size_t kRotateBytes = 512 << 20;  // ten times the L2 of the largest cards
constexpr int kMaxSets = 4;

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { XCE_CUDA_CHECK(cudaEventCreate(&handle)); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  void record(cudaStream_t stream) { XCE_CUDA_CHECK(cudaEventRecord(handle, stream)); }
  float ms_since(const Event& begin) const {
    float ms = 0;
    XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.handle, handle));
    return ms;
  }
};

class CudaBenchDevice : public Device {
 public:
  CudaBenchDevice() : device_(0), exec_(device_.exec()), stream_(device_.exec().stream) {}
  ~CudaBenchDevice() override {
    for (void* block : blocks_) cudaFree(block);
  }
  const Exec& exec() const override { return exec_; }
  std::string describe() const override {
    cudaDeviceProp properties{};
    int driver = 0, runtime = 0;
    XCE_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    XCE_CUDA_CHECK(cudaDriverGetVersion(&driver));
    XCE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    return str(properties.name, ", ", properties.multiProcessorCount, " SMs, CUDA ", runtime / 1000, ".",
               runtime % 1000 / 10, ", driver for ", driver / 1000, ".", driver % 1000 / 10);
  }
  void* allocate(size_t size_bytes) override {
    void* data = nullptr;
    XCE_CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(size_bytes, 1)));
    blocks_.push_back(data);
    return data;
  }
  void release_all() override {
    device_.synchronize();
    for (void* block : blocks_) XCE_CUDA_CHECK(cudaFree(block));
    blocks_.clear();
  }
  void set_bytes(void* to, int value, size_t size_bytes) override {
    XCE_CUDA_CHECK(cudaMemsetAsync(to, value, size_bytes, stream_));
  }
  void write(void* to, const void* from, size_t size_bytes) override {
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, stream_));
    device_.synchronize();  // `from` may go
  }
  void read(void* to, const void* from, size_t size_bytes) override {
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, stream_));
    device_.synchronize();
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream_));
  }

  Timing time(const std::vector<std::function<void()>>& launches, double sustained_ms) override {
    size_t next = 0;
    auto enqueue = [&](int count) {
      for (int i = 0; i < count; ++i) launches[next++ % launches.size()]();
    };
    auto time_of = [&](int count) {
      Event begin, end;
      begin.record(stream_);
      enqueue(count);
      end.record(stream_);
      device_.synchronize();
      return end.ms_since(begin);
    };
    enqueue(static_cast<int>(launches.size()));  // loads the kernels, chooses algorithms
    device_.synchronize();
    const int few = static_cast<int>(std::max<size_t>(4, launches.size()));
    const double once_ms = std::max(time_of(few) / few, 1e-3f);
    const int each = std::max(1, static_cast<int>(std::ceil(sustained_ms / kRounds / once_ms)));
    enqueue(static_cast<int>(kWarmUpMs / once_ms) + 1);
    std::vector<Event> marks(kRounds + 1);
    marks[0].record(stream_);
    for (int round = 1; round <= kRounds; ++round) {
      enqueue(each);
      marks[round].record(stream_);
    }
    device_.synchronize();
    std::vector<double> ms;
    for (int round = 1; round <= kRounds; ++round) ms.push_back(marks[round].ms_since(marks[round - 1]) / each);
    return timing_of(std::move(ms), each);
  }
  int sets_for(size_t bytes_of_a_set) const override {
    return std::clamp(static_cast<int>(kRotateBytes / std::max<size_t>(bytes_of_a_set, 1)) + 1, 1, kMaxSets);
  }

 private:
  CudaDevice device_;
  Exec exec_;
  cudaStream_t stream_;
  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device() {
  if (CudaDevice::count() == 0) throw Error(ErrorCode::kRuntime, "--device cuda: no usable GPU");
  return std::make_unique<CudaBenchDevice>();
}

}  // namespace xce::bench
