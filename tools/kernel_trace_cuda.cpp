// A library that a CUDA program loads to write down each kernel, copy and fill it runs, those of replayed graphs too:
//
//   CUDA_INJECTION64_PATH=build/cuda/bin/xce_kernel_trace.so XCE_TRACE_FILE=trace.txt PROGRAM ...
//
// (or LD_PRELOAD). It needs no rights and no profiler, only CUPTI, which is a part of the CUDA toolkit. In the file's
// name %p becomes the process id. SIGUSR2 writes what is known and ends the process at once with status 0. The format,
// one record a line, times in nanoseconds, is read by tools/profile_report.py:
//
//   xce-kernel-trace 1
//   N id name                              a kernel's demangled name, before its first use
//   K id start end device stream graph     a kernel; graph is 0 outside of graphs
//   C bytes start end device stream kind   a copy, kind such as HtoD
//   S bytes start end device stream        a fill
//   L count                                records that CUPTI had no memory for
//   E                                      the program ended in order
#include <cupti.h>
#include <cxxabi.h>
#include <unistd.h>

#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

namespace {

constexpr size_t kBufferBytes = 4 << 20;
constexpr size_t kAlign = 8;  // CUPTI's

bool succeeded(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "xce_kernel_trace: %s: %s\n", call, text ? text : "unknown error");
  return false;
}

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

const char* name_of(uint8_t copy_kind) {
  switch (copy_kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return "HtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "PtoP";
    default:
      return "other";
  }
}

std::string path_from_environment() {
  const char* given = std::getenv("XCE_TRACE_FILE");
  std::string path = given && *given ? given : "kernel_trace.%p.txt";
  if (size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  return path;
}

// The trace's file, opened by the first record. CUPTI hands over buffers from threads of its own.
class TraceFile {
 public:
  void add(const CUpti_Activity* record) {
    std::lock_guard lock(mutex_);
    if (!open()) return;
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        int id = id_of(k->name ? k->name : "");
        std::fprintf(file_, "K %d %" PRIu64 " %" PRIu64 " %u %u %u\n", id, k->start, k->end, k->deviceId, k->streamId,
                     k->graphId);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        auto* c = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        std::fprintf(file_, "C %" PRIu64 " %" PRIu64 " %" PRIu64 " %u %u %s\n", c->bytes, c->start, c->end, c->deviceId,
                     c->streamId, name_of(c->copyKind));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        auto* s = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        std::fprintf(file_, "S %" PRIu64 " %" PRIu64 " %" PRIu64 " %u %u\n", s->bytes, s->start, s->end, s->deviceId,
                     s->streamId);
        break;
      }
      default:
        break;
    }
  }
  void add_lost(size_t count) {
    std::lock_guard lock(mutex_);
    if (count > 0 && open()) std::fprintf(file_, "L %zu\n", count);
  }
  void finish() {
    std::lock_guard lock(mutex_);
    if (!file_) return;
    std::fputs("E\n", file_);
    bool failed = std::ferror(file_) != 0;
    if (std::fclose(file_) != 0 || failed) std::perror("xce_kernel_trace: the trace is not complete");
    file_ = nullptr;
    closed_ = true;
  }

 private:
  bool open() {
    if (file_ || closed_) return file_ != nullptr;
    std::string path = path_from_environment();
    file_ = std::fopen(path.c_str(), "w");
    closed_ = file_ == nullptr;
    if (closed_)
      std::fprintf(stderr, "xce_kernel_trace: cannot write %s\n", path.c_str());
    else
      std::fputs("xce-kernel-trace 1\n", file_);
    return file_ != nullptr;
  }
  int id_of(const char* name) {
    auto [at, added] = ids_.try_emplace(name, static_cast<int>(ids_.size()));
    if (added) std::fprintf(file_, "N %d %s\n", at->second, demangled(name).c_str());
    return at->second;
  }

  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  bool closed_ = false;
  std::unordered_map<std::string, int> ids_;
};

// Never destroyed: CUPTI's threads may hand over buffers until the process is gone.
TraceFile& trace() {
  static auto* file = new TraceFile;
  return *file;
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlign, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI buffer_complete(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
    trace().add(record);
  size_t lost = 0;
  if (succeeded(cuptiActivityGetNumDroppedRecords(context, stream, &lost), "cuptiActivityGetNumDroppedRecords"))
    trace().add_lost(lost);
  std::free(buffer);
}

void finish() {
  succeeded(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  trace().finish();
}

// The handler of SIGUSR2 may only write to a pipe; the thread that waits there does the rest.
int stop_pipe[2];
void on_stop_signal(int) {
  [[maybe_unused]] ssize_t put = write(stop_pipe[1], "", 1);
}
void watch_for_stop() {
  if (pipe(stop_pipe) != 0 || std::signal(SIGUSR2, on_stop_signal) == SIG_ERR) {
    std::perror("xce_kernel_trace: SIGUSR2 will not end the trace");
    return;
  }
  std::thread([] {
    char byte;
    while (read(stop_pipe[0], &byte, 1) != 1) continue;
    finish();
    _exit(0);
  }).detach();
}

bool start() {
  static const bool started = [] {
    for (CUpti_ActivityKind kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
      if (!succeeded(cuptiActivityEnable(kind), "cuptiActivityEnable")) return false;
    if (!succeeded(cuptiActivityRegisterCallbacks(buffer_wanted, buffer_complete), "cuptiActivityRegisterCallbacks"))
      return false;
    std::atexit(finish);
    watch_for_stop();
    return true;
  }();
  return started;
}

// With LD_PRELOAD nobody calls InitializeInjection.
__attribute__((constructor)) void start_when_preloaded() {
  const char* preload = std::getenv("LD_PRELOAD");
  if (preload && std::string(preload).find("xce_kernel_trace") != std::string::npos) start();
}

}  // namespace

// CUDA's driver calls this when it starts, in the library that CUDA_INJECTION64_PATH names.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  return start() ? 1 : 0;
}
