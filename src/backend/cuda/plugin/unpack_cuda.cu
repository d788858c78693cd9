// The device table of NVIDIA GPUs: matrix products by cuBLAS, the rest from the files beside this
// one.
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/plugin/state.h"

namespace unpack::cuda {

namespace {

// Row-major C = A op(B) is column-major C^T = op(B)^T A^T.
int queue_gemm(State& s, const UnpackGemm* g) {
  const float one = 1.0F, beta = g->accumulate ? 1.0F : 0.0F;
  const cublasOperation_t op = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (g->batch == 1) {
    return check(cublasSgemm_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, g->b, g->ldb, g->a,
                                g->lda, &beta, g->c, g->ldc),
                 "cuBLAS");
  }
  return check(cublasSgemmStridedBatched_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, g->b,
                                            g->ldb, g->stride_b, g->a, g->lda, g->stride_a, &beta,
                                            g->c, g->ldc, g->stride_c, g->batch),
               "cuBLAS");
}

int gemm(void* device, const UnpackGemm* g) {
  State& s = of(device);
  std::lock_guard lock(s.blas_mutex);
  if (s.profile == nullptr) return queue_gemm(s, g);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_gemm(s, g);
  // Sizes that differ by the number of writers alone are one kind.
  const auto about = [](std::int64_t n) {
    std::int64_t p = 1;
    while (p < n) p *= 2;
    return std::to_string(p);
  };
  s.profile->end(s.stream,
                 "product up to " + about(g->m) + " x " + about(g->n) + " x " + about(g->k) +
                     ", batches up to " + about(g->batch),
                 2.0 * static_cast<double>(g->m) * static_cast<double>(g->n) *
                     static_cast<double>(g->k) * static_cast<double>(g->batch));
  return status;
}

}  // namespace

}  // namespace unpack::cuda

extern "C" __attribute__((visibility("default"))) const UnpackDeviceTable* unpack_device_table() {
  using namespace unpack::cuda;
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
                                          join,
                                          gemm,
                                          launch};
  return &table;
}
