#include "src/core/param.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/elementwise.h"
#include "tests/support/errors.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

Parameter parameter(const char* name, int64_t rows, int64_t cols, int unit, double init_stddev = 0.5) {
  return {.name = name, .rows = rows, .cols = cols, .unit = unit, .init_stddev = init_stddev};
}

std::vector<double> read(const void* data, DType dtype, int64_t n) {
  std::vector<double> out(static_cast<size_t>(n));
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = static_cast<const T*>(data)[i];
  });
  return out;
}
void fill(void* data, DType dtype, int64_t n, double value) {
  run(test::cpu_exec(1), Fill{.y = data, .n = n, .dtype = dtype, .value = value});
}

// Odd sizes, so that every parameter is followed by padding.
void add_three(ParameterSet& p) {
  p.add(parameter("matrix", 7, 13, 0));
  p.add(parameter("norm", 1, 13, 1, 0));
  p.add(parameter("other", 3, 43, 1, 0.25));
}
// f(first, last) over the elements between the parameters.
template <class F>
void for_each_padding(const ParameterSet& p, F&& f) {
  for (size_t i = 0; i < p.list().size(); ++i) {
    int64_t end = i + 1 < p.list().size() ? p.list()[i + 1].offset : p.size();
    f(p.list()[i].offset + p.list()[i].size(), end);
  }
}

TEST(ParameterSet, LaysParametersOutAlignedAndInOrder) {
  ParameterSet p(DType::kF32);
  add_three(p);
  int64_t end = 0;
  for (const Parameter& one : p.list()) {
    EXPECT_EQ(one.offset % ParameterSet::kAlign, 0) << one.name;
    EXPECT_GE(one.offset, end) << one.name;
    EXPECT_LT(one.offset - end, ParameterSet::kAlign) << one.name;
    end = one.offset + one.size();
  }
  EXPECT_EQ(p.size() % ParameterSet::kAlign, 0);
  EXPECT_GE(p.size(), end);
  EXPECT_EQ(p.count(), 7 * 13 + 13 + 3 * 43);
  EXPECT_TRUE(p[0].matrix());
  EXPECT_FALSE(p[1].matrix());
}

TEST(ParameterSet, BytesAreThoseOfItsViewsInEachDType) {
  const size_t per_element[] = {4 * 4, 4 * 4 + 2, 4 * 8};
  for (size_t i = 0; i < 3; ++i) {
    ParameterSet p(kDTypes[i]);
    add_three(p);
    EXPECT_EQ(p.bytes(), static_cast<size_t>(p.size()) * per_element[i]) << name_of(kDTypes[i]);
  }
}

TEST(ParameterSet, MisuseThrows) {
  ParameterSet p(DType::kF32);
  EXPECT_THROW(p.initialize(1, test::cpu_exec(1)), Error);
  EXPECT_THROW(p.add(parameter("empty", 0, 4, 0)), Error);
  EXPECT_THROW(p.add(parameter("empty", 4, 0, 0)), Error);
  p.add(parameter("a", 2, 2, 1));
  EXPECT_THROW(p.add(parameter("b", 2, 2, 0)), Error) << "an earlier unit";
  p.allocate();
  EXPECT_THROW(p.add(parameter("c", 2, 2, 1)), Error) << "after allocate";
}

TEST(ParameterSet, SizesBeyondTheAddressableAreRefusedByName) {
  const int64_t huge = int64_t{1} << 33;  // huge * huge is 4 modulo 2^64, huge * huge / 4 is 0
  for (auto [rows, cols] : {std::pair{huge, huge}, std::pair{huge / 2, huge}, std::pair{huge / 4, huge / 4},
                            std::pair{int64_t{1}, INT64_MAX}}) {
    ParameterSet p(DType::kF32);
    p.add(parameter("small", 3, 5, 0));
    EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"big", str(rows, " x ", cols)},
                                   [&, rows = rows, cols = cols] { p.add(parameter("big", rows, cols, 0)); }));
    EXPECT_EQ(p.list().size(), 1u);
  }
  ParameterSet many(DType::kF64);  // each fits, the sum does not
  many.add(parameter("first", int64_t{1} << 28, int64_t{1} << 27, 0));
  EXPECT_EQ(many.bytes(), size_t{1} << 60);
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"second"},
                                 [&] { many.add(parameter("second", int64_t{1} << 28, int64_t{1} << 28, 0)); }));
}

TEST(ParameterSet, UnallocatedViewsAreNull) {
  ParameterSet p(DType::kBf16);
  add_three(p);
  EXPECT_FALSE(p.allocated());
  EXPECT_EQ(p.master(64), nullptr);
  EXPECT_EQ(p.compute(64), nullptr);
  EXPECT_EQ(p.grad(64), nullptr);
}

TEST(ParameterSet, ViewsAreDistinctZeroedAndShareOnlyWhenTypesAgree) {
  for (DType dtype : kDTypes) {
    ParameterSet p(dtype);
    add_three(p);
    p.allocate();
    EXPECT_EQ(p.has_compute_copy(), dtype == DType::kBf16);
    EXPECT_EQ(p.compute(64) == p.master(64), dtype != DType::kBf16);
    std::vector<void*> views = {p.master(), p.grad(), p.first_moment(), p.second_moment()};
    for (void* view : views)
      for (double x : read(view, accum_dtype(dtype), p.size())) ASSERT_EQ(x, 0);
    for (size_t i = 0; i < views.size(); ++i) fill(views[i], accum_dtype(dtype), p.size(), static_cast<double>(i + 1));
    for (size_t i = 0; i < views.size(); ++i)
      for (double x : read(views[i], accum_dtype(dtype), p.size())) ASSERT_EQ(x, static_cast<double>(i + 1));
  }
}

TEST(ParameterSet, InitialValuesHaveTheAskedMoments) {
  ParameterSet p(DType::kF32);
  int big = p.add(parameter("big", 200, 100, 0, 0.02)), norm = p.add(parameter("norm", 1, 9, 0, 0));
  p.allocate();
  p.initialize(3, test::cpu_exec(1));
  double sum = 0, square = 0;
  std::vector<double> values = read(p.master(p[big].offset), DType::kF32, p[big].size());
  for (double x : values) {
    sum += x;
    square += x * x;
  }
  double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(square / n, 0.0004, 5 * 0.0004 * std::sqrt(2 / n));
  EXPECT_EQ(read(p.master(p[norm].offset), DType::kF32, 9), std::vector<double>(9, 1.0));
}

TEST(ParameterSet, ForInferenceThereAreWeightsAlone) {
  ParameterSet p(DType::kBf16);
  p.add({.name = "w", .rows = 3, .cols = 5, .unit = 0, .init_stddev = 1});
  p.allocate(host_memory(), ParameterUse::kInference);
  p.initialize(3, test::cpu_exec(1));
  p.update_compute(test::cpu_exec(1));
  EXPECT_NE(*static_cast<const uint16_t*>(p.compute()), 0);
  EXPECT_EQ(p.grad(), nullptr);
  EXPECT_EQ(p.first_moment(), nullptr);
  EXPECT_EQ(p.second_moment(), nullptr);
}

TEST(ParameterSet, InitialValuesDependOnSeedAndNameAlone) {
  ParameterSet alone(DType::kF32), among(DType::kF32), wide(DType::kF64), low(DType::kBf16);
  alone.add(parameter("matrix", 7, 13, 0));
  for (ParameterSet* p : {&among, &wide, &low}) {
    p->add(parameter("before", 5, 5, 0));
    p->add(parameter("matrix", 7, 13, 3));
  }
  for (ParameterSet* p : {&alone, &among, &wide, &low}) {
    p->allocate();
    p->initialize(11, test::cpu_exec(1));
  }
  std::vector<double> want = read(alone.master(), DType::kF32, 91);
  EXPECT_EQ(read(among.master(among[1].offset), DType::kF32, 91), want);
  EXPECT_EQ(read(low.master(low[1].offset), DType::kF32, 91), want);
  EXPECT_EQ(read(wide.master(wide[1].offset), DType::kF64, 91), want);
  EXPECT_NE(read(among.master(), DType::kF32, 25), std::vector<double>(want.begin(), want.begin() + 25));
  among.initialize(12, test::cpu_exec(1));
  EXPECT_NE(read(among.master(among[1].offset), DType::kF32, 91), want);
}

TEST(ParameterSet, ComputeIsTheRoundedMasterAndPaddingStaysZero) {
  for (DType dtype : kDTypes) {
    ParameterSet p(dtype);
    add_three(p);
    p.allocate();
    p.initialize(5, test::cpu_exec(1));
    p.update_compute(test::cpu_exec(3));
    std::vector<double> master = read(p.master(), accum_dtype(dtype), p.size()),
                        compute = read(p.compute(), dtype, p.size());
    for (size_t i = 0; i < master.size(); ++i) {
      double want = dtype == DType::kBf16 ? static_cast<double>(static_cast<float>(Bf16(static_cast<float>(master[i]))))
                                          : master[i];
      ASSERT_EQ(compute[i], want) << name_of(dtype) << " element " << i;
    }
    for_each_padding(p, [&](int64_t begin, int64_t end) {
      EXPECT_LT(begin, end);
      for (int64_t i = begin; i < end; ++i) ASSERT_EQ(master[static_cast<size_t>(i)], 0);
    });
  }
}

TEST(ParameterSet, FirstWriterOverwritesLaterOnesAdd) {
  ParameterSet p(DType::kF32);
  add_three(p);
  p.allocate();
  for (int step = 0; step < 2; ++step) {
    p.begin_gradients();
    EXPECT_FALSE(p.claim_gradient(0));
    EXPECT_TRUE(p.claim_gradient(0));
    EXPECT_FALSE(p.claim_gradient(2)) << "each parameter counts for itself";
    EXPECT_TRUE(p.claim_gradient(0));
  }
}

TEST(ParameterSet, OnlyUnwrittenGradientsAreZeroed) {
  for (DType dtype : kDTypes) {
    DType accum = accum_dtype(dtype);
    ParameterSet p(dtype);
    add_three(p);
    p.allocate();
    for (const Parameter& one : p.list()) fill(p.grad(one.offset), accum, one.size(), 7);  // of an earlier step
    p.begin_gradients();
    p.claim_gradient(1);
    p.finish_gradients(test::cpu_exec(3));
    std::vector<double> grad = read(p.grad(), accum, p.size());
    for (size_t i = 0; i < p.list().size(); ++i)
      for (int64_t e = 0; e < p.list()[i].size(); ++e)
        ASSERT_EQ(grad[static_cast<size_t>(p.list()[i].offset + e)], i == 1 ? 7 : 0) << p.list()[i].name;
    for_each_padding(p, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ASSERT_EQ(grad[static_cast<size_t>(i)], 0);
    });
  }
}

}  // namespace
}  // namespace xce
