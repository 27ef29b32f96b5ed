#include "src/core/device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/cpu/parallel.h"

namespace xce {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class HostMemory final : public Memory {
 public:
  void* allocate(size_t size_bytes) override {
    bool large = size_bytes >= kHugePage;
    void* p = nullptr;
    if (posix_memalign(&p, large ? kHugePage : 64, size_bytes) != 0)
      throw Error(ErrorCode::kRuntime, str("out of memory: could not allocate ", size_bytes, " bytes"));
    if (large) madvise(p, size_bytes, MADV_HUGEPAGE);  // a hint: refused without harm where huge pages are off
    std::memset(p, 0, size_bytes);
    return p;
  }
  void release(void* data) noexcept override { std::free(data); }
  void copy_in(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void set_bytes(void* at, int value, size_t bytes) override {
    if (bytes > 0) std::memset(at, value, bytes);
  }
  bool host_readable() const override { return true; }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  }
};

using Clock = std::chrono::steady_clock;

// Work of a CPU is done when the call that enqueues it returns.
class Instant final : public Mark {
 public:
  bool reached() const override { return true; }
  void wait() const override {}
  double ms_since(const Mark& earlier) const override {
    return std::chrono::duration<double, std::milli>(at_ - dynamic_cast<const Instant&>(earlier).at_).count();
  }

 private:
  Clock::time_point at_ = Clock::now();
};

class Direct final : public Recording {
 public:
  explicit Direct(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads), exec_(CpuExec{&pool_}) {}
  const Exec& exec() const override { return exec_; }
  Memory& memory() override { return host_memory(); }
  Memory& staging() override { return host_memory(); }
  bool asynchronous() const override { return false; }
  std::string describe() const override { return str("cpu, ", pool_.size(), " threads"); }
  double peak_flops(DType) const override { return 0; }
  size_t used_bytes() const override { return 0; }
  size_t fixed_bytes() const override { return 0; }
  std::unique_ptr<Recording> record(std::function<void()> work) override { return record_eager(std::move(work)); }
  void upload(void* to, const void* from, size_t bytes) override { host_memory().copy_in(to, from, bytes); }
  std::unique_ptr<Mark> download(void* to, const void* from, size_t bytes) override {
    host_memory().copy_out(to, from, bytes);
    return std::make_unique<Instant>();
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<Instant>(); }
  void synchronize() override {}

 private:
  ThreadPool pool_;
  Exec exec_;
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

std::unique_ptr<Recording> Device::record_eager(std::function<void()> work) {
  return std::make_unique<Direct>(std::move(work));
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace xce
