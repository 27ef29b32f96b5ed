// The baseline: cuBLAS's default algorithms, as torch.mm calls them, over all rows at once: logits and dx of the dtype,
// dW in fp32 with beta 1, or of the dtype.
#include <cublas_v2.h>

#include <algorithm>
#include <optional>

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/gemm_plans.h"
#include "tools/bench_loss/device.h"

namespace xce::bench {
namespace {

void check(cublasStatus_t status, const char* call) {
  XCE_CHECK(status == CUBLAS_STATUS_SUCCESS, call, cublasGetStatusName(status));
}

class ThreeProducts {
 public:
  ThreeProducts(Device& memory, const LossShape& s, DType dtype, bool tf32, const ProductArrays& arrays)
      : s_(s),
        arrays_(arrays),
        type_(type_of(dtype)),
        compute_(tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F),
        dlogits_(Array::source(memory, dtype, s.rows * s.vocab, 3, 1e-4)) {
    logits_ = memory.allocate(dlogits_.size_bytes());
    check(cublasCreate(&handle_), "cublasCreate");
    check(cublasSetStream(handle_, std::get<CudaExec>(memory.exec()).stream), "cublasSetStream");
    check(cublasSetWorkspace(handle_, memory.allocate(kScratchBytes), kScratchBytes), "cublasSetWorkspace");
  }
  ~ThreeProducts() { cublasDestroy(handle_); }
  ThreeProducts(const ThreeProducts&) = delete;

  void enqueue() const {
    const float adds = arrays_.dweight_dtype == DType::kF32 ? 1 : 0;
    const int n = static_cast<int>(s_.rows), h = static_cast<int>(s_.hidden), v = static_cast<int>(s_.vocab);
    product(CUBLAS_OP_T, CUBLAS_OP_N, v, n, h, arrays_.weight, h, arrays_.x, h, 0, logits_, type_, v);
    product(CUBLAS_OP_N, CUBLAS_OP_N, h, n, v, arrays_.weight, h, dlogits_.data(), v, 0, arrays_.dx, type_, h);
    product(CUBLAS_OP_N, CUBLAS_OP_T, h, v, n, arrays_.x, h, dlogits_.data(), v, adds, arrays_.dweight,
            type_of(arrays_.dweight_dtype), h);
  }

 private:
  static cudaDataType_t type_of(DType dtype) {
    return dtype == DType::kBf16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
  }
  static constexpr size_t kScratchBytes = size_t{32} << 20;
  void product(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* a, int lda, const void* b,
               int ldb, float beta, void* c, cudaDataType_t type, int ldc) const {
    const float one = 1;
    check(cublasGemmEx(handle_, ta, tb, m, n, k, &one, a, type_, lda, b, type_, ldb, &beta, c, type, ldc, compute_,
                       CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }
  LossShape s_;
  ProductArrays arrays_;
  cudaDataType_t type_;
  cublasComputeType_t compute_;
  Array dlogits_;
  void* logits_;
  cublasHandle_t handle_ = nullptr;
};

class CudaLossDevice : public LossDevice {
 public:
  CudaLossDevice() : memory_(make_cuda_device()), other_(0), untuned_(untuned_like(memory_->exec())) {}
  Device& memory() override { return *memory_; }
  const Exec* untuned_exec() override { return &untuned_; }
  void tune(const std::function<void()>& call) override {
    start_gemm_tuning(std::get<CudaExec>(exec()));
    call();
    stop_gemm_tuning(std::get<CudaExec>(exec()));
  }
  std::string plans_text() override { return gemm_plans_text(std::get<CudaExec>(exec())); }
  Sample time(const std::function<void()>& call, double hold_ms) override {
    constexpr int kBatch = 4;
    const cudaStream_t stream = std::get<CudaExec>(exec()).stream;
    cudaEvent_t marks[kBatch + 1];
    for (cudaEvent_t& mark : marks) XCE_CUDA_CHECK(cudaEventCreate(&mark));
    std::vector<double> all;
    for (double spent = 0; spent < hold_ms;) {
      XCE_CUDA_CHECK(cudaEventRecord(marks[0], stream));
      for (int i = 0; i < kBatch; ++i) {
        call();
        XCE_CUDA_CHECK(cudaEventRecord(marks[i + 1], stream));
      }
      XCE_CUDA_CHECK(cudaEventSynchronize(marks[kBatch]));
      for (int i = 0; i < kBatch; ++i) {
        float ms = 0;
        XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, marks[i], marks[i + 1]));
        all.push_back(ms);
        spent += ms;
      }
    }
    for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
    std::vector<double> later(all.begin() + static_cast<int64_t>(all.size() / 2), all.end());
    std::sort(later.begin(), later.end());
    return {later[later.size() / 2], 0};
  }
  std::function<void()> three_products(const LossShape& shape, DType dtype, bool tf32,
                                       const ProductArrays& arrays) override {
    auto products = std::make_shared<ThreeProducts>(memory(), shape, dtype, tf32, arrays);
    return [products] { products->enqueue(); };
  }

 private:
  // Products of its own choice, on the same stream: one order of everything.
  Exec untuned_like(const Exec& exec) {
    CudaExec same = other_.exec();
    same.stream = std::get<CudaExec>(exec).stream;
    return same;
  }
  std::unique_ptr<Device> memory_;
  CudaDevice other_;
  Exec untuned_;
};

}  // namespace

std::unique_ptr<LossDevice> make_cuda_loss_device() {
  return std::make_unique<CudaLossDevice>();
}

}  // namespace xce::bench
