// The carver: counting and carving agree, arrays are aligned and do not overlap.
#include "kernels/base/workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace xce {
namespace {

struct Layout {
  float* a;
  double* b;
  char* c;
  int64_t* none;
  explicit Layout(Carver& carver)
      : a(carver.take<float>(7)), b(carver.take<double>(9)), c(carver.take<char>(1)), none(carver.take<int64_t>(0)) {}
};

TEST(Carver, CountsWithoutABase) {
  Carver carver(nullptr);
  Layout layout(carver);
  EXPECT_EQ(layout.a, nullptr);
  EXPECT_EQ(layout.c, nullptr);
  EXPECT_EQ(carver.used_bytes(), 64u + 128u + 64u);
}

TEST(Carver, CarvesWhatItCountedAlignedAndApart) {
  Carver counter(nullptr);
  Layout counted(counter);
  alignas(64) std::array<char, 256> block;
  ASSERT_EQ(counter.used_bytes(), block.size());
  Carver carver(block.data());
  Layout layout(carver);
  EXPECT_EQ(carver.used_bytes(), counter.used_bytes());
  auto offset = [&](const void* p) { return static_cast<const char*>(p) - block.data(); };
  EXPECT_EQ(offset(layout.a), 0);
  EXPECT_EQ(offset(layout.b), 64);
  EXPECT_EQ(offset(layout.c), 192);
  std::fill_n(layout.a, 7, 1.5f);
  std::fill_n(layout.b, 9, -2.5);
  *layout.c = 'x';
  EXPECT_TRUE(std::all_of(layout.a, layout.a + 7, [](float x) { return x == 1.5f; }));
  EXPECT_TRUE(std::all_of(layout.b, layout.b + 9, [](double x) { return x == -2.5; }));
}

TEST(Carver, ExactMultiplesAreNotPadded) {
  Carver carver(nullptr);
  carver.take<float>(16);
  EXPECT_EQ(carver.used_bytes(), 64u);
  carver.take<float>(17);
  EXPECT_EQ(carver.used_bytes(), 64u + 128u);
}

TEST(Carver, SizesBeyond32Bits) {
  Carver carver(nullptr);
  carver.take<double>(int64_t{1} << 33);
  EXPECT_EQ(carver.used_bytes(), size_t{1} << 36);
}

}  // namespace
}  // namespace xce
