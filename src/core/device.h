// Where a run's arrays lie and its work is enqueued: memory, exec, copies, recordings, and what is known of the
// hardware. device.cpp has the CPU's, device_cuda.cpp a GPU's; device_nocuda.cpp stands in for that in a build without
// CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/attention.h"
#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

// An address space. Copies are ordered behind what was enqueued on its device's exec and done when they return.
class Memory {
 public:
  virtual ~Memory() = default;
  // Zeroed, aligned to 64 bytes; Error(kRuntime) with the size when memory runs out.
  virtual void* allocate(size_t size_bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  virtual void copy_in(void* to, const void* from_host, size_t size_bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, size_t size_bytes) = 0;
  virtual void set_bytes(void* at, int value, size_t size_bytes) = 0;
  virtual bool host_readable() const = 0;  // its addresses mean the same to the host
};
Memory& host_memory();

// A point in the order of a device's work.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual bool reached() const = 0;
  virtual void wait() const = 0;
  virtual double ms_since(const Mark& earlier) const = 0;  // both reached
};

// Work that can be enqueued again and again.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const Exec& exec() const = 0;
  virtual Memory& memory() = 0;           // for arrays that ops read and write
  virtual Memory& staging() = 0;          // host memory that upload and download reach without waiting
  virtual bool asynchronous() const = 0;  // work is enqueued, and may be captured once it has run
  virtual std::string describe() const = 0;
  virtual double peak_flops(DType dtype) const = 0;  // a second, of dense matrix products; 0: not known
  // Which kernels a forward of these sizes takes, empty where there is no choice.
  virtual std::string attention_kernels(const AttentionForward&) const { return ""; }
  virtual size_t used_bytes() const = 0;   // of the device's own memory, since it was opened; 0: not known
  virtual size_t fixed_bytes() const = 0;  // what the device itself takes of it: libraries' scratch

  // `work` only enqueues, always the same; replay() enqueues it. A GPU captures it into a graph here and now, in global
  // mode: it has run once before, and no other thread may call CUDA meanwhile.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) = 0;
  // The same without a graph.
  std::unique_ptr<Recording> record_eager(std::function<void()> work);

  // Copies staging memory to `to` beside what runs; what is enqueued from now on waits for it.
  virtual void upload(void* to, const void* from, size_t size_bytes) = 0;
  // Copies to staging memory what `from` holds once everything enqueued so far is done; the mark is behind it.
  virtual std::unique_ptr<Mark> download(void* to, const void* from, size_t size_bytes) = 0;
  virtual std::unique_ptr<Mark> mark() = 0;  // behind everything enqueued so far
  virtual void synchronize() = 0;

  // What first runs choose (algorithms of matrix products), as text that makes another process choose the same. While
  // tuning, a shape seen for the first time is raced on its own operands, whose results are then garbage.
  virtual void set_tuning(bool) {}
  virtual std::string plans_text() const { return ""; }
  virtual std::string raced_plans_text() const { return ""; }  // the raced ones alone
  // Adds the choices in `text`, which `source` names in errors; returns why they were left out, empty if they were not.
  virtual std::string load_plans(const std::string& /*text*/, const std::string& /*source*/) { return ""; }
  virtual std::string plans_summary() const { return ""; }
};

std::unique_ptr<Device> make_cpu_device(int threads);

struct CudaDeviceOptions {
  int index = 0;
  // Arrays in pinned host memory, which host code reads as it is and the GPU over the bus: for tests.
  bool host_arrays = false;
  bool deterministic = true;  // false: CudaExec::deterministic
};
bool cuda_is_built();
int cuda_device_count();  // 0 in a build without CUDA
// Error(kUsage) in a build without CUDA and where no GPU is visible.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options = {});
// Answers questions about an H200's workspaces and nothing else: for plans made where there is no GPU.
std::unique_ptr<Device> make_planning_device(const CudaDeviceOptions& options = {});

}  // namespace xce
