// The device table of NVIDIA GPUs: matrix products by cuBLAS, the rest from the files beside this
// one.
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/plugin/state.h"

namespace unpack::backend::cuda {

namespace {

// Row-major C = A op(B) is column-major C^T = op(B)^T A^T.
int queue_gemm(State& s, UnpackFactors factors, const UnpackGemm* g) {
  const float one = 1.0F, beta = g->accumulate ? 1.0F : 0.0F;
  const cublasOperation_t op = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (factors != UNPACK_FACTORS_SINGLE) {
    const bool halves = factors == UNPACK_FACTORS_BF16;
    const cudaDataType_t type = halves ? CUDA_R_16BF : CUDA_R_32F;
    const cublasComputeType_t compute = halves ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
    return check(cublasGemmStridedBatchedEx_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one,
                                               g->b, type, g->ldb, g->stride_b, g->a, type, g->lda,
                                               g->stride_a, &beta, g->c, CUDA_R_32F, g->ldc,
                                               g->stride_c, g->batch, compute, CUBLAS_GEMM_DEFAULT),
                 "cuBLAS");
  }
  const auto* a = static_cast<const float*>(g->a);
  const auto* b = static_cast<const float*>(g->b);
  if (g->batch == 1) {
    return check(cublasSgemm_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, b, g->ldb, a,
                                g->lda, &beta, g->c, g->ldc),
                 "cuBLAS");
  }
  return check(cublasSgemmStridedBatched_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, b,
                                            g->ldb, g->stride_b, a, g->lda, g->stride_a, &beta,
                                            g->c, g->ldc, g->stride_c, g->batch),
               "cuBLAS");
}

int gemm(void* device, UnpackFactors factors, const UnpackGemm* g) {
  State& s = of(device);
  std::lock_guard lock(s.blas_mutex);
  if (s.profile == nullptr) return queue_gemm(s, factors, g);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_gemm(s, factors, g);
  constexpr const char* kKinds[] = {"product", "bf16 product", "TF32 product"};
  // Sizes that differ by the number of writers alone are one kind.
  const auto about = [](std::int64_t n) {
    std::int64_t p = 1;
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
                                          launch};
  return &table;
}
