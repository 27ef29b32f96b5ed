#include <chrono>
#include <cstdlib>
#include <new>

#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/parallel.h"
#include "tools/bench_kernels/device.h"

namespace xce::bench {
namespace {

constexpr size_t kAlign = 64;
constexpr int kRounds = 40;

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads), exec_(CpuExec{&pool_}) {}
  ~CpuDevice() override { CpuDevice::release_all(); }
  const Exec& exec() const override { return exec_; }
  std::string describe() const override { return str("CPU, ", pool_.size(), " threads, BLAS core ", cpu::blas_core()); }
  void* allocate(size_t size_bytes) override {
    void* data = std::aligned_alloc(kAlign, (size_bytes / kAlign + 1) * kAlign);
    if (!data) throw std::bad_alloc();
    blocks_.push_back(data);
    return data;
  }
  void release_all() override {
    for (void* block : blocks_) std::free(block);
    blocks_.clear();
  }
  void set_bytes(void* to, int value, size_t size_bytes) override { std::memset(to, value, size_bytes); }
  void write(void* to, const void* from, size_t size_bytes) override { std::memcpy(to, from, size_bytes); }
  void read(void* to, const void* from, size_t size_bytes) override { std::memcpy(to, from, size_bytes); }
  void copy(void* to, const void* from, size_t size_bytes) override {
    parallel_for(std::get<CpuExec>(exec_), static_cast<int64_t>(size_bytes), 1 << 16,
                 [&](int64_t begin, int64_t end, int) {
                   std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
                 });
  }
  Timing time(const std::vector<std::function<void()>>& launches, double) override {
    std::vector<double> ms;
    for (int round = 0; round < kRounds; ++round) {
      auto begin = std::chrono::steady_clock::now();
      launches[round % launches.size()]();
      ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    return timing_of(std::move(ms), 1);
  }
  // A small model's arrays stay in the caches between its ops, too.
  int sets_for(size_t) const override { return 1; }

 private:
  ThreadPool pool_;
  Exec exec_;
  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads > 0 ? threads : hardware_threads());
}

}  // namespace xce::bench
