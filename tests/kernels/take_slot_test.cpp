#include "kernels/take_slot.h"

#include <gtest/gtest.h>

#include "tests/support/array.h"
#include "tests/support/device_test.h"
#include "tests/support/errors.h"

namespace xce {
namespace {

class TakeSlotTest : public test::DeviceTest {};

TEST_P(TakeSlotTest, TheStepChoosesTheSlot) {
  for (int64_t n : {1, 7, 1000}) {
    test::Vector<int32_t> slots(static_cast<size_t>(3 * n));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{3000000000}}) {
      test::Scalar<StepState> state(StepState{.step = step});
      test::Vector<int32_t> out(static_cast<size_t>(n) + 1, -1);
      run(exec(), TakeSlot{.slots = slots.data(), .state = state.data(), .out = out.data(), .n = n, .count = 3});
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], step % 3 * n + i);
      EXPECT_EQ(out[static_cast<size_t>(n)], -1) << "past the end";
    }
  }
}

TEST_P(TakeSlotTest, RefusesWhatIsMissing) {
  test::Vector<int32_t> data(4, 0);
  test::Scalar<StepState> state(StepState{});
  TakeSlot good{.slots = data.data(), .state = state.data(), .out = data.data() + 2, .n = 1, .count = 2};
  auto refused = [&](auto&& change) {
    TakeSlot args = good;
    change(args);
    EXPECT_THROW(run(exec(), args), Error);
  };
  refused([](TakeSlot& a) { a.slots = nullptr; });
  refused([](TakeSlot& a) { a.state = nullptr; });
  refused([](TakeSlot& a) { a.out = nullptr; });
  refused([](TakeSlot& a) { a.n = -1; });
  refused([](TakeSlot& a) { a.count = 0; });
}

INSTANTIATE_TEST_SUITE_P(Devices, TakeSlotTest, ::testing::ValuesIn(test::device_names()), test::device_name);

}  // namespace
}  // namespace xce
