#include "src/dist/communicator.h"

#include "kernels/base/check.h"
#include "kernels/elementwise.h"

namespace xce {
namespace {

// Rank 0 of 1: reductions are the identity, the rest are copies, and all is done at once.
class WorldOfOne final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Work all_reduce(const Exec&, void* data, int64_t count, CommType type, Reduce op) override {
    check_buffer(data, count, type, "all_reduce data");
    XCE_CHECK(op == Reduce::kSum || op == Reduce::kMax, "a Reduce", static_cast<int>(op));
    return Work(next_++);
  }
  Work reduce_scatter(const Exec& exec, const void* send, void* recv, int64_t count, CommType type) override {
    return copy(exec, send, recv, count, type, "reduce_scatter");
  }
  Work all_gather(const Exec& exec, const void* send, void* recv, int64_t count, CommType type) override {
    return copy(exec, send, recv, count, type, "all_gather");
  }
  Work broadcast(const Exec&, void* data, int64_t count, CommType type, int root) override {
    check_buffer(data, count, type, "broadcast data");
    XCE_CHECK(root == 0, "broadcast root 0 in a world of one", root);
    return Work(next_++);
  }
  void wait(const Exec&, Work work) override {
    XCE_CHECK(work.id() >= 0 && work.id() < next_, "a Work of this communicator", work.id());
  }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<WorldOfOne>(); }
  void check() override {}

 private:
  static void check_buffer(const void* data, int64_t count, CommType type, const char* what) {
    size_of(type);
    XCE_CHECK(count >= 0, str(what, " with a count of 0 or more"), count);
    XCE_CHECK(count == 0 || data != nullptr, str(what, " not null"), "null");
  }
  Work copy(const Exec& exec, const void* send, void* recv, int64_t count, CommType type, const char* what) {
    check_buffer(send, count, type, what);
    check_buffer(recv, count, type, what);
    const DType bits = size_of(type) == 2 ? DType::kBf16 : size_of(type) == 4 ? DType::kF32 : DType::kF64;
    if (send != recv) run(exec, Convert{.x = send, .y = recv, .n = count, .from = bits, .to = bits});
    return Work(next_++);
  }
  int64_t next_ = 0;
};

}  // namespace

CommType comm_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CommType::kF32;
    case DType::kBf16:
      return CommType::kBf16;
    case DType::kF64:
      return CommType::kF64;
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}

size_t size_of(CommType type) {
  switch (type) {
    case CommType::kF32:
      return 4;
    case CommType::kBf16:
      return 2;
    case CommType::kF64:
      return 8;
    case CommType::kI64:
      return 8;
  }
  throw Error(ErrorCode::kRuntime, str("expected a CommType, got ", static_cast<int>(type)));
}

std::unique_ptr<Communicator> make_communicator() {
  return std::make_unique<WorldOfOne>();
}

}  // namespace xce
