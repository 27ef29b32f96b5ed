// Contexts are independent: two threads with one each compute what one thread computes after the other, and an error
// message belongs to the thread whose call failed.
#include <cstring>
#include <thread>

#include "tests/capi/c_args.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

class CApiThreads : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CApiThreads, ::testing::ValuesIn(device_names()), device_name);

// Repeats forward_backward of one case and keeps whether every repetition gave the first one's bits.
struct Worker {
  LossCase c;
  LossSetup setup;
  LossRun run;
  bool same = true;
  std::string error;

  Worker(DType dtype, uint64_t seed) : c(random_case(dtype, 64, 24, 500, seed)), setup{.dtype = dtype}, run(c, setup) {}

  void work(bool on_gpu, int times) {
    CContext context(on_gpu, 2);
    Vector<std::max_align_t> scratch(size_t{1} << 16);
    auto args = c_args({.in = run.inputs(),
                        .options = run.options(),
                        .out = run.outputs(),
                        .upstream = {},
                        .grad = run.gradients(),
                        .workspace = {.budget_bytes = size_t{1} << 20,
                                      .data = scratch.data(),
                                      .size_bytes = scratch.size() * sizeof(std::max_align_t)}});
    for (int i = 0; i < times; ++i) {
      const Array before = run.dweight;
      if (xce_linear_cross_entropy_forward_backward(context, &args) != XCE_OK) error = xce_last_error();
      if (i > 0) same = same && run.dweight.same_bits(before);
    }
  }
};

TEST_P(CApiThreads, TwoContextsAtOnce) {
  constexpr int kTimes = 20;
  Worker first(DType::kF32, 1), second(DType::kBf16, 2), alone_first(DType::kF32, 1), alone_second(DType::kBf16, 2);
  alone_first.work(on_gpu(), 1);
  alone_second.work(on_gpu(), 1);
  std::thread one([&] { first.work(on_gpu(), kTimes); }), two([&] { second.work(on_gpu(), kTimes); });
  one.join();
  two.join();
  for (const Worker* w : {&first, &second, &alone_first, &alone_second}) EXPECT_EQ(w->error, "");
  EXPECT_TRUE(first.same && second.same);
  EXPECT_TRUE(first.run.dweight.same_bits(alone_first.run.dweight));
  EXPECT_TRUE(second.run.dweight.same_bits(alone_second.run.dweight));
  EXPECT_TRUE(first.run.loss.same_bits(alone_first.run.loss));
}

TEST(CApiErrors, BelongToTheirThread) {
  std::string fresh, other;
  std::thread([&] {
    fresh = xce_last_error();
    xce_loss_prepare(nullptr, 1);
    other = xce_last_error();
  }).join();
  EXPECT_EQ(fresh, "");
  EXPECT_NE(other.find("xce_loss_prepare"), std::string::npos);
  xce_loss_count(nullptr, nullptr);
  EXPECT_NE(std::strstr(xce_last_error(), "xce_loss_count"), nullptr);
  EXPECT_EQ(other.find("xce_loss_count"), std::string::npos);
}

}  // namespace
}  // namespace xce::test
