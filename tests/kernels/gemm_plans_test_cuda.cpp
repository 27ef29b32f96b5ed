// The choice of matrix products' algorithms: raced ones compute the same, another device restores them from the text
// bit for bit, and a capture neither races nor chooses.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/gemm_plan_text.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/linear.h"
#include "tests/support/array.h"
#include "tests/support/errors.h"

namespace xce {
namespace {

using test::Array;

constexpr GemmRace kShortRace{.rounds = 2, .round_ms = 0.5};

// y = x weight^T; dx = dy weight; dweight += dy^T x.
struct Layer {
  static constexpr int64_t kRows = 300, kIn = 512, kOut = 384;
  DType dtype;
  Array x, weight, dy, y, dx, dweight;
  explicit Layer(DType dtype)
      : dtype(dtype),
        x(Array::normal(dtype, kRows * kIn, 1)),
        weight(Array::normal(dtype, kOut * kIn, 2)),
        dy(Array::normal(dtype, kRows * kOut, 3)),
        y(dtype, kRows * kOut),
        dx(dtype, kRows * kIn),
        dweight(Array::filled(accum_dtype(dtype), kOut * kIn, 0)) {}

  void run(CudaDevice& device) {
    launch(device.exec(), forward());
    launch(device.exec(), LinearBackward{.x = x.data(),
                                         .weight = weight.data(),
                                         .dy = dy.data(),
                                         .dx = dx.data(),
                                         .dweight = dweight.data(),
                                         .workspace = nullptr,
                                         .workspace_size_bytes = 0,
                                         .rows = kRows,
                                         .in = kIn,
                                         .out = kOut,
                                         .dtype = dtype,
                                         .accumulate_dweight = true});
    device.synchronize();
  }
  LinearForward forward() {
    return {.x = x.data(),
            .weight = weight.data(),
            .y = y.data(),
            .workspace = nullptr,
            .workspace_size_bytes = 0,
            .rows = kRows,
            .in = kIn,
            .out = kOut,
            .dtype = dtype};
  }
  void clear() {
    y = Array(dtype, kRows * kOut), dx = Array(dtype, kRows * kIn);
    dweight = Array::filled(accum_dtype(dtype), kOut * kIn, 0);
  }
  // The largest error against plain sums in fp64, of a sample of each result, over the results' size.
  double error() const {
    double worst = 0;
    auto sample = [&](const Array& got, int64_t rows, int64_t cols, int64_t k, auto&& term) {
      for (int64_t i = 0; i < rows; i += rows / 7)
        for (int64_t j = 0; j < cols; j += cols / 11) {
          double want = 0;
          for (int64_t l = 0; l < k; ++l) want += term(i, j, l);
          const double error = std::fabs(got[i * cols + j] - want) / std::sqrt(static_cast<double>(k));
          worst = error > worst || std::isnan(error) ? error : worst;
        }
    };
    sample(y, kRows, kOut, kIn, [&](auto i, auto j, auto l) { return x[i * kIn + l] * weight[j * kIn + l]; });
    sample(dx, kRows, kIn, kOut, [&](auto i, auto j, auto l) { return dy[i * kOut + l] * weight[l * kIn + j]; });
    sample(dweight, kOut, kIn, kRows, [&](auto i, auto j, auto l) { return dy[l * kOut + i] * x[l * kIn + j]; });
    return worst;
  }
};

class CudaGemmPlans : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaGemmPlans, ::testing::Values(DType::kBf16, DType::kF32, DType::kF64),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(CudaGemmPlans, RacedOnesComputeTheSameAndTheTextRestoresThem) {
  const double tolerance = GetParam() == DType::kBf16 ? 2e-2 : GetParam() == DType::kF32 ? 1e-5 : 1e-13;
  CudaDevice plain(0), raced(0), restored(0);
  Layer layer(GetParam());
  layer.run(plain);
  EXPECT_LE(layer.error(), tolerance);
  EXPECT_EQ(gemm_plan_counts(plain.exec()).first_answers, 3);
  EXPECT_EQ(gemm_plan_counts(plain.exec()).raced, 0);

  start_gemm_tuning(raced.exec(), kShortRace);
  layer.run(raced);  // adds to dweight many times
  stop_gemm_tuning(raced.exec());
  EXPECT_EQ(gemm_plan_counts(raced.exec()).raced, 3);
  layer.clear();
  layer.run(raced);
  EXPECT_LE(layer.error(), tolerance);
  EXPECT_EQ(gemm_plan_counts(raced.exec()).raced, 3);
  const Layer want = layer;

  const std::string text = gemm_plans_text(raced.exec());
  EXPECT_EQ(load_gemm_plans_text(restored.exec(), text, "plans.txt"), "");
  EXPECT_EQ(gemm_plans_text(restored.exec()), text);
  start_gemm_tuning(restored.exec(), kShortRace);
  layer.clear();
  layer.run(restored);
  EXPECT_EQ(gemm_plan_counts(restored.exec()).loaded, 3);
  EXPECT_EQ(gemm_plan_counts(restored.exec()).raced, 0);
  EXPECT_EQ(gemm_plans_text(restored.exec()), text);
  EXPECT_TRUE(layer.y.same_bits(want.y));
  EXPECT_TRUE(layer.dx.same_bits(want.dx));
  EXPECT_TRUE(layer.dweight.same_bits(want.dweight));
}

TEST_P(CudaGemmPlans, FirstAnswersAreRacedOnceTuningStartsAndSavedToo) {
  CudaDevice device(0), restored(0);
  Layer layer(GetParam());
  layer.run(device);
  EXPECT_EQ(load_gemm_plans_text(restored.exec(), gemm_plans_text(device.exec()), "plans.txt"), "");
  start_gemm_tuning(restored.exec(), kShortRace);
  layer.run(restored);
  EXPECT_EQ(gemm_plan_counts(restored.exec()).loaded, 3);
  start_gemm_tuning(device.exec(), kShortRace);
  layer.run(device);
  EXPECT_EQ(gemm_plan_counts(device.exec()).raced, 3);
  EXPECT_EQ(gemm_plan_counts(device.exec()).first_answers, 0);
}

TEST_P(CudaGemmPlans, AnotherMachinesTextIsRefusedWithTheReason) {
  CudaDevice device(0);
  Layer layer(GetParam());
  layer.run(device);
  cuda::GemmPlanText plans = cuda::plans_from_text(gemm_plans_text(device.exec()), "plans.txt");
  const std::string here = plans.machine;
  plans.machine = "Some other GPU";
  CudaDevice second(0);
  const std::string reason = load_gemm_plans_text(second.exec(), cuda::to_text(plans), "plans.txt");
  for (const std::string& word : {std::string("plans.txt"), plans.machine, here})
    EXPECT_NE(reason.find(word), std::string::npos) << reason;
  EXPECT_NE(load_gemm_plans_text(second.exec(), "xce gemm plans 0\n", "plans.txt"), "");
  layer.run(second);
  EXPECT_EQ(gemm_plan_counts(second.exec()).loaded, 0);
}

TEST_P(CudaGemmPlans, AnAlgorithmThatCannotRunIsDamage) {
  CudaDevice device(0);
  Layer layer(GetParam());
  layer.run(device);
  cuda::GemmPlanText plans = cuda::plans_from_text(gemm_plans_text(device.exec()), "plans.txt");
  for (auto& [shape, choice] : plans.choices) choice.algorithm.fill(0xFF);
  EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"plans.txt", "m "},
                                 [&] { load_gemm_plans_text(device.exec(), cuda::to_text(plans), "plans.txt"); }));
}

TEST_P(CudaGemmPlans, ACaptureOfAnUnknownShapeIsAnErrorAndLeavesTheCaptureWhole) {
  CudaDevice device(0);
  Layer layer(GetParam());
  const cudaStream_t stream = device.exec().stream;
  for (bool tuning : {false, true}) {
    if (tuning) start_gemm_tuning(device.exec(), kShortRace);
    XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"eagerly", "m 300 n 384 k 512"},
                                   [&] { launch(device.exec(), layer.forward()); }));
    cudaGraph_t graph = nullptr;
    XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  stop_gemm_tuning(device.exec());
  layer.run(device);
  const Array want = layer.y;
  start_gemm_tuning(device.exec(), kShortRace);  // a captured launch of a known shape is not a race
  layer.clear();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch(device.exec(), layer.forward());
  XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  EXPECT_TRUE(std::isnan(layer.y[0])) << "capture ran something";
  XCE_CUDA_CHECK(cudaGraphLaunch(executable, stream));
  device.synchronize();
  EXPECT_TRUE(layer.y.same_bits(want));
  EXPECT_EQ(gemm_plan_counts(device.exec()).raced, 0);
  XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
}

TEST_P(CudaGemmPlans, RacesOfNothingAreRefused) {
  CudaDevice device(0);
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"rounds", "got 0"},
                                 [&] { start_gemm_tuning(device.exec(), {.rounds = 0}); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"round_ms", "got 0"},
                                 [&] { start_gemm_tuning(device.exec(), {.round_ms = 0}); }));
}

}  // namespace
}  // namespace xce
