// Matrix products of a GPU against plain fp64 sums of the same rounded operands: types, transpositions, rows apart, a
// factor and an addend on the device.
#include "kernels/cuda/gemm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/gemm_plans.h"
#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace xce {
namespace {

using test::Array;

struct Product {
  DType in, out;
  bool tf32 = false;
  // Relative L2 error: fp32 sums, and what rounding the result or, of TF32, the operands (10 bits) adds.
  double bar() const {
    if (in == DType::kF64) return 1e-14;
    return 2e-6 + (out == DType::kF32 ? 0 : test::tolerance(out)) + (tf32 ? 1e-3 : 0);
  }
};
std::ostream& operator<<(std::ostream& to, const Product& p) {
  return to << name_of(p.in) << "_" << name_of(p.out) << (p.tf32 ? "_tf32" : "");
}

// Operands of one product, with `pad` unused elements after each row; those of C must stay NaN.
class Operands {
 public:
  static constexpr int64_t m = 75, n = 56, k = 200;
  Operands(const Product& p, bool trans_a, bool trans_b, int64_t pad)
      : p_(p),
        trans_a_(trans_a),
        trans_b_(trans_b),
        lda_((trans_a ? m : k) + pad),
        ldb_((trans_b ? k : n) + pad),
        ldc_(n + pad),
        a_(Array::normal(p.in, (trans_a ? k : m) * lda_, 1)),
        b_(Array::normal(p.in, (trans_b ? n : k) * ldb_, 2)),
        c(p.out, m * ldc_) {}

  cuda::Gemm gemm(bool add) {
    return {.a = a_.data(),
            .b = b_.data(),
            .c = c.data(),
            .lda = lda_,
            .ldb = ldb_,
            .ldc = ldc_,
            .m = m,
            .n = n,
            .k = k,
            .trans_a = trans_a_,
            .trans_b = trans_b_,
            .in = p_.in,
            .out = p_.out,
            .addend = add ? c.data() : nullptr,
            .allow_tf32 = p_.tf32};
  }
  void fill(double value) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c.set(i * ldc_ + j, value);
  }
  // Relative L2 error against factor * A B + start.
  double error(double factor, double start) const {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < ldc_; ++j) {
        const double got = c[i * ldc_ + j];
        if (j >= n) {
          EXPECT_TRUE(std::isnan(got)) << "written between rows, at " << i << ", " << j;
          continue;
        }
        double want = 0;
        for (int64_t l = 0; l < k; ++l)
          want += a_[trans_a_ ? l * lda_ + i : i * lda_ + l] * b_[trans_b_ ? j * ldb_ + l : l * ldb_ + j];
        want = factor * want + start;
        error += (got - want) * (got - want), norm += want * want;
      }
    EXPECT_TRUE(c.guards_intact());
    return std::sqrt(error / norm);
  }

 private:
  Product p_;
  bool trans_a_, trans_b_;
  int64_t lda_, ldb_, ldc_;
  Array a_, b_;

 public:
  Array c;
};

class CudaGemm : public ::testing::TestWithParam<Product> {
 protected:
  void SetUp() override {
    if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  }
  bool takes_factor() const { return GetParam().in != DType::kF64; }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaGemm,
                         ::testing::Values(Product{DType::kBf16, DType::kBf16}, Product{DType::kBf16, DType::kF32},
                                           Product{DType::kF16, DType::kF16}, Product{DType::kF16, DType::kF32},
                                           Product{DType::kF32, DType::kF32}, Product{DType::kF32, DType::kF32, true},
                                           Product{DType::kF64, DType::kF64}),
                         ::testing::PrintToStringParamName());

TEST_P(CudaGemm, IsTheProductWithFactorAndAddend) {
  CudaDevice device(0);
  const test::Scalar<float> factor(0.25f);
  for (bool trans_a : {false, true})
    for (bool trans_b : {false, true})
      for (int64_t pad : {0, 3, 8})
        for (bool add : {false, true})
          for (bool has_factor : {false, true}) {
            if (has_factor && !takes_factor()) continue;
            SCOPED_TRACE(str("transposed ", trans_a, trans_b, " pad ", pad, " add ", add, " factor ", has_factor));
            Operands operands(GetParam(), trans_a, trans_b, pad);
            if (add) operands.fill(2);  // without, C holds NaN that must not be read
            cuda::Gemm product = operands.gemm(add);
            if (has_factor) product.alpha = factor.data();
            cuda::gemm(device.exec(), product);
            device.synchronize();
            EXPECT_LE(operands.error(has_factor ? 0.25 : 1, add ? 2 : 0), GetParam().bar());
          }
}

TEST_P(CudaGemm, AReplayedProductReadsItsFactorAnew) {
  if (!takes_factor()) GTEST_SKIP() << "takes no factor";
  CudaDevice device(0);
  const cudaStream_t stream = device.exec().stream;
  test::Scalar<float> factor(1);
  Operands operands(GetParam(), true, false, 0);
  cuda::Gemm product = operands.gemm(false);
  product.alpha = factor.data();
  cuda::gemm(device.exec(), product);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cuda::gemm(device.exec(), product);
  XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  for (float value : {8.f, -0.5f}) {
    *factor.data() = value;
    XCE_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    device.synchronize();
    EXPECT_LE(operands.error(value, 0), GetParam().bar()) << value;
  }
  XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
}

// Kinds of one size have plans of their own, which a text restores.
TEST_P(CudaGemm, EveryKindHasAPlan) {
  CudaDevice device(0), restored(0);
  const test::Scalar<float> factor(1);
  Operands operands(GetParam(), false, true, 0);
  auto all = [&](CudaDevice& on) {
    for (bool has_factor : {false, true}) {
      if (has_factor && !takes_factor()) continue;
      cuda::Gemm product = operands.gemm(false);
      if (has_factor) product.alpha = factor.data();
      cuda::gemm(on.exec(), product);
      if (GetParam().tf32) product.allow_tf32 = false, cuda::gemm(on.exec(), product);
    }
    on.synchronize();
  };
  const int64_t kinds = (takes_factor() ? 2 : 1) * (GetParam().tf32 ? 2 : 1);
  all(device);
  EXPECT_EQ(gemm_plan_counts(device.exec()).first_answers, kinds);
  EXPECT_EQ(load_gemm_plans_text(restored.exec(), gemm_plans_text(device.exec()), "plans.txt"), "");
  all(restored);
  EXPECT_EQ(gemm_plan_counts(restored.exec()).loaded, kinds);
  EXPECT_EQ(gemm_plan_counts(restored.exec()).first_answers, 0);
}

TEST(CudaGemmArguments, AFactorOfAnFp64ProductIsAnError) {
  if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  CudaDevice device(0);
  const test::Scalar<float> factor(1);
  Operands operands({DType::kF64, DType::kF64}, false, false, 0);
  cuda::Gemm product = operands.gemm(false);
  product.alpha = factor.data();
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"factor", "fp64"}, [&] { cuda::gemm(device.exec(), product); }));
}

}  // namespace
}  // namespace xce
