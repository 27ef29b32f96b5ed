// A thin C++17 skin over xce.h: contexts that destroy themselves, structs that know their size, statuses as exceptions.
// What fields and calls mean: xce.h.
#ifndef XCE_XCE_HPP_
#define XCE_XCE_HPP_

#include <xce/xce.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace xce::api {

class Error : public std::runtime_error {
 public:
  explicit Error(xce_status status) : std::runtime_error(xce_last_error()), status_(status) {}
  xce_status status() const { return status_; }

 private:
  xce_status status_;
};

inline void check(xce_status status) {
  if (status != XCE_OK) throw Error(status);
}

class Context {
 public:
  static Context cpu(int32_t threads = 0) {
    xce_context* context = nullptr;
    check(xce_context_create_cpu(threads, &context));
    return Context(context);
  }
  static Context cuda(int32_t device) {
    xce_context* context = nullptr;
    check(xce_context_create_cuda(device, &context));
    return Context(context);
  }
  void set_stream(void* stream) { check(xce_context_set_stream(get(), stream)); }
  void set_tuning(bool on) { check(xce_context_set_tuning(get(), on)); }
  std::string tuning_text() const {
    size_t bytes = 0;
    check(xce_context_tuning_text(get(), nullptr, 0, &bytes));
    std::string text(bytes, '\0');
    check(xce_context_tuning_text(get(), text.data(), bytes, &bytes));
    text.resize(bytes - 1);
    return text;
  }
  void load_tuning_text(const std::string& text) { check(xce_context_load_tuning_text(get(), text.c_str())); }
  xce_context* get() const { return context_.get(); }

 private:
  struct Destroy {
    void operator()(xce_context* context) const { xce_context_destroy(context); }
  };
  explicit Context(xce_context* context) : context_(context) {}
  std::unique_ptr<xce_context, Destroy> context_;
};

// An args struct of zeros but for its size.
template <class Args>
struct Sized : Args {
  Sized() : Args{} { this->struct_size = sizeof(Args); }
};
using LinearCrossEntropy = Sized<xce_linear_cross_entropy_args>;
using CrossEntropy = Sized<xce_cross_entropy_args>;
using LossCount = Sized<xce_loss_count_args>;
using LossStatistics = Sized<xce_loss_statistics_args>;

struct Chunks {
  int64_t count, rows_per_chunk;
};

inline size_t workspace_bytes(const Context& context, xce_pass pass, const xce_linear_cross_entropy_args& args) {
  size_t bytes = 0;
  check(xce_linear_cross_entropy_workspace_bytes(context.get(), pass, &args, &bytes));
  return bytes;
}
inline void prepare(const Context& context, xce_pass pass, const xce_linear_cross_entropy_args& args) {
  check(xce_linear_cross_entropy_prepare(context.get(), pass, &args));
}
inline void forward(const Context& context, const xce_linear_cross_entropy_args& args) {
  check(xce_linear_cross_entropy_forward(context.get(), &args));
}
inline void backward(const Context& context, const xce_linear_cross_entropy_args& args) {
  check(xce_linear_cross_entropy_backward(context.get(), &args));
}
inline void forward_backward(const Context& context, const xce_linear_cross_entropy_args& args) {
  check(xce_linear_cross_entropy_forward_backward(context.get(), &args));
}
inline Chunks chunks(const Context& context, const xce_linear_cross_entropy_args& args) {
  Chunks cut{};
  check(xce_linear_cross_entropy_chunks(context.get(), &args, &cut.count, &cut.rows_per_chunk));
  return cut;
}
inline void begin(const Context& context, const xce_linear_cross_entropy_args& args, int64_t chunk, void* statistics) {
  check(xce_linear_cross_entropy_begin(context.get(), &args, chunk, statistics));
}
inline void finish(const Context& context, const xce_linear_cross_entropy_args& args, int64_t chunk,
                   const void* statistics) {
  check(xce_linear_cross_entropy_finish(context.get(), &args, chunk, statistics));
}

inline size_t workspace_bytes(const Context& context, xce_pass pass, const xce_cross_entropy_args& args) {
  size_t bytes = 0;
  check(xce_cross_entropy_workspace_bytes(context.get(), pass, &args, &bytes));
  return bytes;
}
inline void prepare(const Context& context, xce_pass pass, const xce_cross_entropy_args& args) {
  check(xce_cross_entropy_prepare(context.get(), pass, &args));
}
inline void forward(const Context& context, const xce_cross_entropy_args& args) {
  check(xce_cross_entropy_forward(context.get(), &args));
}
inline void backward(const Context& context, const xce_cross_entropy_args& args) {
  check(xce_cross_entropy_backward(context.get(), &args));
}
inline void forward_backward(const Context& context, const xce_cross_entropy_args& args) {
  check(xce_cross_entropy_forward_backward(context.get(), &args));
}

inline void count(const Context& context, const xce_loss_count_args& args) {
  check(xce_loss_count(context.get(), &args));
}
inline size_t statistics_bytes(const Context& context, const xce_loss_statistics_args& args) {
  size_t bytes = 0;
  check(xce_loss_statistics_bytes(context.get(), &args, &bytes));
  return bytes;
}
inline void merge_statistics(const Context& context, const xce_loss_statistics_args& args) {
  check(xce_loss_merge_statistics(context.get(), &args));
}
inline void from_statistics(const Context& context, const xce_loss_statistics_args& args) {
  check(xce_loss_from_statistics(context.get(), &args));
}
inline void prepare(const Context& context, int32_t dtype) {
  check(xce_loss_prepare(context.get(), dtype));
}

}  // namespace xce::api

#endif  // XCE_XCE_HPP_
