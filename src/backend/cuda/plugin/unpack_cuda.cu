// The device table of NVIDIA GPUs: matrix products by cuBLAS, the rest from the files beside this
// one.
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/plugin/state.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// Row-major C = A op(B) is column-major C^T = op(B)^T A^T.
int queue_gemm(State& s, UnpackFactors factors, const UnpackGemm* g, const float* times) {
  const float one = 1.0F, beta = g->accumulate ? 1.0F : 0.0F;
  const cublasOperation_t op =
      (g->transposed & UNPACK_B_TRANSPOSED) != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_a =
      (g->transposed & UNPACK_A_TRANSPOSED) != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (factors != UNPACK_FACTORS_SINGLE) {
    const bool single = factors == UNPACK_FACTORS_TF32;
    const cudaDataType_t type = single                           ? CUDA_R_32F
                                : factors == UNPACK_FACTORS_BF16 ? CUDA_R_16BF
                                                                 : CUDA_R_16F;
    const cublasComputeType_t compute = single ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    // With a number on the device both factors of the sum have to be there.
    if (times != nullptr &&
        check(cublasSetPointerMode(s.blas, CUBLAS_POINTER_MODE_DEVICE), "cuBLAS"))
      return 1;
    const float* by = times != nullptr ? times : &one;
    const float* keep = times != nullptr ? s.numbers + (g->accumulate ? 1 : 0) : &beta;
    const cublasStatus_t status = cublasGemmStridedBatchedEx_64(
        s.blas, op, op_a, g->n, g->m, g->k, by, g->b, type, g->ldb, g->stride_b, g->a, type, g->lda,
        g->stride_a, keep, g->c, CUDA_R_32F, g->ldc, g->stride_c, g->batch, compute,
        CUBLAS_GEMM_DEFAULT);
    if (times != nullptr && check(cublasSetPointerMode(s.blas, CUBLAS_POINTER_MODE_HOST), "cuBLAS"))
      return 1;
    return check(status, "cuBLAS");
  }
  const auto* a = static_cast<const float*>(g->a);
  const auto* b = static_cast<const float*>(g->b);
  if (g->batch == 1) {
    return check(cublasSgemm_64(s.blas, op, op_a, g->n, g->m, g->k, &one, b, g->ldb, a, g->lda,
                                &beta, g->c, g->ldc),
                 "cuBLAS");
  }
  return check(cublasSgemmStridedBatched_64(s.blas, op, op_a, g->n, g->m, g->k, &one, b, g->ldb,
                                            g->stride_b, a, g->lda, g->stride_a, &beta, g->c,
                                            g->ldc, g->stride_c, g->batch),
               "cuBLAS");
}

int scaled_gemm(void* device, UnpackFactors factors, const UnpackGemm* g, const float* times) {
  State& s = of(device);
  std::lock_guard lock(s.blas_mutex);
  if (s.profile == nullptr) return queue_gemm(s, factors, g, times);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_gemm(s, factors, g, times);
  constexpr const char* kKinds[] = {"product", "bf16 product", "TF32 product", "product of halves"};
  // Sizes that differ by the number of writers alone are one kind.
  const auto about = [](Index n) {
    Index p = 1;
    while (p < n) p *= 2;
    return std::to_string(p);
  };
  s.profile->end(s.stream,
                 std::string(kKinds[factors]) + " up to " + about(g->m) + " x " + about(g->n) +
                     " x " + about(g->k) + ", batches up to " + about(g->batch),
                 2.0 * static_cast<double>(g->m) * static_cast<double>(g->n) *
                     static_cast<double>(g->k) * static_cast<double>(g->batch));
  return status;
}

int gemm(void* device, UnpackFactors factors, const UnpackGemm* g) {
  return scaled_gemm(device, factors, g, nullptr);
}

}  // namespace

}  // namespace unpack::backend::cuda

extern "C" __attribute__((visibility("default"))) const UnpackDeviceTable* unpack_device_table() {
  using namespace unpack::backend::cuda;
  static const UnpackDeviceTable table = {UNPACK_DEVICE_TABLE_VERSION,
                                          static_cast<int>(KernelId::kCount),
                                          error,
                                          open_device,
                                          close_device,
                                          info,
                                          out_of_memory,
                                          memory_use,
                                          allocate,
                                          release,
                                          zero,
                                          to_device,
                                          to_host,
                                          copy,
                                          wait,
                                          allocate_beside,
                                          to_device_beside,
                                          wait_beside,
                                          join,
                                          gemm,
                                          scaled_gemm,
                                          few_rows,
                                          pair_sums_fit,
                                          pair_sums,
                                          launch};
  return &table;
}
