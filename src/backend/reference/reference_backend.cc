#include "backend/reference/reference_backend.h"

#include "backend/host/host_base.h"

namespace unpack::backend {

namespace {

// Primitives as plain loops in double precision and no operation of its own: slow, and right.
class ReferenceBackend final : public HostPrimitives<double> {
 public:
  using HostPrimitives::HostPrimitives;
  std::string name() const override { return "reference"; }
  std::string details() const override { return "plain loops in double precision"; }

 protected:
  // C[m, n] = sum_k A[m, k] B[k, n]
  void gemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
            std::int64_t lda, const double* b, std::int64_t ldb, bool accumulate, double* c,
            std::int64_t ldc) override {
    for (std::int64_t i = 0; i < m; ++i) {
      double* to = c + i * ldc;
      if (!accumulate) std::fill(to, to + n, 0.0);
      if (b_transposed) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t p = 0; p < k; ++p) sum += a[i * lda + p] * b[j * ldb + p];
          to[j] += sum;
        }
      } else {
        for (std::int64_t p = 0; p < k; ++p) {
          const double x = a[i * lda + p];
          for (std::int64_t j = 0; j < n; ++j) to[j] += x * b[p * ldb + j];
        }
      }
    }
  }
};

}  // namespace

std::shared_ptr<Backend> make_reference_backend(std::shared_ptr<const model::ModelWeights> weights,
                                                const BackendOptions& options) {
  return std::make_shared<ReferenceBackend>(std::move(weights), options);
}

}  // namespace unpack::backend
