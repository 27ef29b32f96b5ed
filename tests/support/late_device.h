// A CPU that behaves as a GPU does: it asks for a warm-up, and the results of steps land late, so that a program runs
// ahead of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "src/core/device.h"

namespace xce::test {

class LateDevice final : public Device {
 public:
  // on_download is called with the number of each download, from 1: of each submitted step.
  explicit LateDevice(int threads, std::function<void(int)> on_download = {})
      : cpu_(make_cpu_device(threads)), on_download_(std::move(on_download)) {}

  bool asynchronous() const override { return true; }
  const Exec& exec() const override { return cpu_->exec(); }
  Memory& memory() override { return cpu_->memory(); }
  Memory& staging() override { return cpu_->staging(); }
  std::string describe() const override { return "late " + cpu_->describe(); }
  double peak_flops(DType) const override { return 1e9; }
  size_t used_bytes() const override { return 0; }
  size_t fixed_bytes() const override { return 0; }
  std::unique_ptr<Recording> record(std::function<void()> work) override { return record_eager(std::move(work)); }
  void upload(void* to, const void* from, size_t bytes) override { cpu_->upload(to, from, bytes); }
  std::unique_ptr<Mark> download(void* to, const void* from, size_t bytes) override {
    auto mark = std::make_unique<LateMark>(cpu_->download(to, from, bytes));
    if (on_download_) on_download_(++downloads_);
    return mark;
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<LateMark>(cpu_->mark()); }
  void synchronize() override {}

 private:
  // Reached when somebody waits for it, not before.
  class LateMark final : public Mark {
   public:
    explicit LateMark(std::unique_ptr<Mark> inner) : inner_(std::move(inner)) {}
    bool reached() const override { return waited_; }
    void wait() const override { waited_ = true; }
    double ms_since(const Mark& earlier) const override {
      return inner_->ms_since(*dynamic_cast<const LateMark&>(earlier).inner_);
    }

   private:
    std::unique_ptr<Mark> inner_;
    mutable bool waited_ = false;
  };
  std::unique_ptr<Device> cpu_;
  std::function<void(int)> on_download_;
  int downloads_ = 0;
};

}  // namespace xce::test
