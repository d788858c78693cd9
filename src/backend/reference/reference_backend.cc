#include "backend/reference/reference_backend.h"

#include "backend/host/host_base.h"
#include "base/index.h"

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
  void gemm(bool b_transposed, Index m, Index n, Index k, const double* a, Index lda,
            const double* b, Index ldb, bool accumulate, double* c, Index ldc) override {
    for (Index i = 0; i < m; ++i) {
      double* to = c + i * ldc;
      if (!accumulate) std::fill(to, to + n, 0.0);
      if (b_transposed) {
        for (Index j = 0; j < n; ++j) {
          double sum = 0;
          for (Index p = 0; p < k; ++p) sum += a[i * lda + p] * b[j * ldb + p];
          to[j] += sum;
        }
      } else {
        for (Index p = 0; p < k; ++p) {
          const double x = a[i * lda + p];
          for (Index j = 0; j < n; ++j) to[j] += x * b[p * ldb + j];
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
