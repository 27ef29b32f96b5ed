#include "src/core/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/check.h"

namespace xce {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{4096}, (size_t{2} << 20) - 1, (size_t{2} << 20) + 1}) {
    for (int round = 0; round < 2; ++round) {  // the second round meets memory that the first one dirtied
      Buffer buffer(size);
      ASSERT_EQ(buffer.size_bytes(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u) << size;
      for (size_t i = 0; i < size; ++i) ASSERT_EQ(buffer.as<char>()[i], 0) << size << " byte " << i;
      std::memset(buffer.data(), 0x5A, size);
    }
  }
}

TEST(Buffer, EmptyOnesHoldNothing) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer().size_bytes(), 0u);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).size_bytes(), 0u);
}

TEST(Buffer, MovingLeavesTheSourceEmpty) {
  Buffer from(128);
  void* data = from.data();
  Buffer to(std::move(from));
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.size_bytes(), 128u);
  EXPECT_EQ(from.data(), nullptr);
  EXPECT_EQ(from.size_bytes(), 0u);
  Buffer other(64);
  other = std::move(to);
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(other.size_bytes(), 128u);
  EXPECT_EQ(to.data(), nullptr);
  EXPECT_EQ(to.size_bytes(), 0u);
}

TEST(Buffer, RefusedMemoryNamesTheSize) {
  const size_t impossible = std::numeric_limits<size_t>::max() / 4;
  try {
    Buffer buffer(impossible);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRuntime);
    EXPECT_NE(std::string(e.what()).find(std::to_string(impossible)), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace xce
