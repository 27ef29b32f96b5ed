// The contract of a Communicator, written against rank() and size() alone: the same body holds in a world of any size.
#include "src/dist/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/array.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

constexpr int64_t kCounts[] = {0, 1, 3, 1000};

// An element's value on a rank: small integers, exact in every type and sum.
double value(int rank, int64_t i) {
  return static_cast<double>((i * 7 + rank * 3) % 11 - 5);
}

Array values(DType dtype, int rank, int64_t first, int64_t count) {
  Array a(dtype, count);
  for (int64_t i = 0; i < count; ++i) a.set(i, value(rank, first + i));
  return a;
}

class CommunicatorTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Communicator> world = make_communicator();
  Exec exec = test::cpu_exec(2);
  DType dtype = GetParam();
  CommType type = comm_type(dtype);

  void wait(Work work) { world->wait(exec, std::move(work)); }
  // fn(rank) over all ranks, reduced.
  template <class F>
  double reduced(Reduce op, F&& fn) const {
    double result = fn(0);
    for (int r = 1; r < world->size(); ++r) result = op == Reduce::kSum ? result + fn(r) : std::fmax(result, fn(r));
    return result;
  }
};

TEST_P(CommunicatorTest, RanksAreInTheWorld) {
  EXPECT_GE(world->size(), 1);
  EXPECT_GE(world->rank(), 0);
  EXPECT_LT(world->rank(), world->size());
}

TEST_P(CommunicatorTest, AllReduce) {
  for (Reduce op : {Reduce::kSum, Reduce::kMax})
    for (int64_t count : kCounts) {
      Array data = values(dtype, world->rank(), 0, count);
      wait(world->all_reduce(exec, data.data(), count, type, op));
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], reduced(op, [&](int r) { return value(r, i); })) << i;
      EXPECT_TRUE(data.guards_intact());
    }
}

TEST_P(CommunicatorTest, ReduceScatter) {
  for (bool in_place : {false, true})
    for (int64_t count : kCounts) {
      int64_t mine = world->rank() * count;
      Array send = values(dtype, world->rank(), 0, world->size() * count), recv(dtype, count);
      void* own_part = static_cast<char*>(send.data()) + mine * static_cast<int64_t>(size_of(dtype));
      wait(world->reduce_scatter(exec, send.data(), in_place ? own_part : recv.data(), count, type));
      for (int64_t i = 0; i < count; ++i) {
        double want = reduced(Reduce::kSum, [&](int r) { return value(r, mine + i); });
        ASSERT_EQ(in_place ? send[mine + i] : recv[i], want) << i;
      }
      EXPECT_TRUE(recv.guards_intact() && send.guards_intact());
    }
}

TEST_P(CommunicatorTest, AllGather) {
  for (bool in_place : {false, true})
    for (int64_t count : kCounts) {
      int64_t mine = world->rank() * count;
      Array send = values(dtype, world->rank(), 0, count), recv(dtype, world->size() * count);
      void* own_part = static_cast<char*>(recv.data()) + mine * static_cast<int64_t>(size_of(dtype));
      if (in_place) std::memcpy(own_part, send.data(), static_cast<size_t>(count) * size_of(dtype));
      wait(world->all_gather(exec, in_place ? own_part : send.data(), recv.data(), count, type));
      for (int r = 0; r < world->size(); ++r)
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(recv[r * count + i], value(r, i)) << "rank " << r << ", " << i;
      EXPECT_TRUE(recv.guards_intact());
    }
}

TEST_P(CommunicatorTest, BroadcastFromEachRoot) {
  for (int root = 0; root < world->size(); ++root)
    for (int64_t count : kCounts) {
      Array data = values(dtype, world->rank(), 0, count);
      wait(world->broadcast(exec, data.data(), count, type, root));
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], value(root, i)) << i;
      EXPECT_TRUE(data.guards_intact());
    }
}

TEST_P(CommunicatorTest, SeveralInFlightWaitedForInAnyOrder) {
  Array a = values(dtype, world->rank(), 0, 100), b = values(dtype, world->rank(), 100, 50);
  Work first = world->all_reduce(exec, a.data(), 100, type, Reduce::kSum);
  Work second = world->all_reduce(exec, b.data(), 50, type, Reduce::kMax);
  wait(std::move(second));
  wait(std::move(first));
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(a[i], reduced(Reduce::kSum, [&](int r) { return value(r, i); }));
  for (int64_t i = 0; i < 50; ++i) ASSERT_EQ(b[i], reduced(Reduce::kMax, [&](int r) { return value(r, 100 + i); }));
}

TEST_P(CommunicatorTest, NotANumberSurvives) {
  Array data = Array::filled(dtype, 3, 1);
  if (world->rank() == world->size() - 1) data.set(1, NAN);
  wait(world->all_reduce(exec, data.data(), 3, type, Reduce::kSum));
  EXPECT_EQ(data[0], world->size());
  EXPECT_TRUE(std::isnan(data[1]));
}

TEST_P(CommunicatorTest, SplitByColorOrdersByKey) {
  std::unique_ptr<Communicator> same = world->split(0, -world->rank());
  ASSERT_EQ(same->size(), world->size());
  EXPECT_EQ(same->rank(), world->size() - 1 - world->rank());
  std::unique_ptr<Communicator> alone = world->split(world->rank(), 0);
  ASSERT_EQ(alone->size(), 1);
  EXPECT_EQ(alone->rank(), 0);
  Array data = values(dtype, world->rank(), 0, 10);
  alone->wait(exec, alone->all_reduce(exec, data.data(), 10, type, Reduce::kSum));
  for (int64_t i = 0; i < 10; ++i) ASSERT_EQ(data[i], value(world->rank(), i));
}

TEST_P(CommunicatorTest, BarrierAndCheckPass) {
  world->barrier();
  world->check();
}

// Refused before anything is sent, so no rank is left waiting.
TEST_P(CommunicatorTest, MisuseThrows) {
  Array one(dtype, 1), all(dtype, world->size());
  void *p = one.data(), *q = all.data();
  EXPECT_THROW(world->all_reduce(exec, nullptr, 1, type, Reduce::kSum), Error);
  EXPECT_THROW(world->all_reduce(exec, p, -1, type, Reduce::kSum), Error);
  EXPECT_THROW(world->all_reduce(exec, p, 1, static_cast<CommType>(99), Reduce::kSum), Error);
  EXPECT_THROW(world->all_reduce(exec, p, 1, type, static_cast<Reduce>(99)), Error);
  EXPECT_THROW(world->reduce_scatter(exec, nullptr, p, 1, type), Error);
  EXPECT_THROW(world->reduce_scatter(exec, q, nullptr, 1, type), Error);
  EXPECT_THROW(world->reduce_scatter(exec, q, p, -1, type), Error);
  EXPECT_THROW(world->all_gather(exec, nullptr, q, 1, type), Error);
  EXPECT_THROW(world->all_gather(exec, p, nullptr, 1, type), Error);
  EXPECT_THROW(world->all_gather(exec, p, q, -1, type), Error);
  EXPECT_THROW(world->broadcast(exec, nullptr, 1, type, 0), Error);
  EXPECT_THROW(world->broadcast(exec, p, -1, type, 0), Error);
  EXPECT_THROW(world->broadcast(exec, p, 1, type, -1), Error);
  EXPECT_THROW(world->broadcast(exec, p, 1, type, world->size()), Error);
}

TEST_P(CommunicatorTest, AWorkIsWaitedForOnce) {
  Array data = values(dtype, world->rank(), 0, 4);
  Work work = world->all_reduce(exec, data.data(), 4, type, Reduce::kSum);
  int64_t id = work.id();
  wait(std::move(work));
  EXPECT_THROW(wait(std::move(work)), Error) << "moved from";
  EXPECT_THROW(wait(Work(id + 1)), Error) << "never handed out";
}

INSTANTIATE_TEST_SUITE_P(DTypes, CommunicatorTest, ::testing::Values(DType::kF32, DType::kBf16, DType::kF64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CommunicatorTypes, Counts64BitIntegersExactly) {
  std::unique_ptr<Communicator> world = make_communicator();
  Exec exec = test::cpu_exec(1);
  int64_t data[] = {(int64_t{1} << 60) + 1, -5, world->rank()};
  world->wait(exec, world->all_reduce(exec, data + 2, 1, CommType::kI64, Reduce::kSum));
  EXPECT_EQ(data[2], world->size() * (world->size() - 1) / 2);
  world->wait(exec, world->all_reduce(exec, data, 2, CommType::kI64, Reduce::kMax));
  EXPECT_EQ(data[0], (int64_t{1} << 60) + 1);
  EXPECT_EQ(data[1], -5);
}

TEST(CommunicatorTypes, SizesAndNames) {
  EXPECT_EQ(size_of(comm_type(DType::kF32)), 4u);
  EXPECT_EQ(size_of(comm_type(DType::kBf16)), 2u);
  EXPECT_EQ(size_of(comm_type(DType::kF64)), 8u);
  EXPECT_EQ(size_of(CommType::kI64), 8u);
  EXPECT_THROW(size_of(static_cast<CommType>(99)), Error);
  EXPECT_THROW(comm_type(static_cast<DType>(99)), Error);
}

}  // namespace
}  // namespace xce
