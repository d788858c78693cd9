#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/gemm.h"
#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

class CpuBackend final : public HostWays<float> {
 public:
  CpuBackend(std::shared_ptr<const model::ModelWeights> weights, const BackendOptions& options,
             std::size_t pack_halves, Index few_halves)
      : HostWays(std::move(weights), options), small_(small_for_gemm(weights_->parameter_count())) {
    read_as_stored(pack_halves, few_halves);
    // Where few rows are multiplied with what is stored, the other products of a short prompt are
    // small ones; whoever has a large one opens oneDNN.
    if (!small_ && !looks_at_values()) prepare_gemm();
  }
  std::string name() const override { return "cpu"; }
  std::string details() const override {
    return std::string(kernel_name()) + " kernels, " + (small_ ? own_gemm_name() : gemm_details());
  }

 protected:
  void gemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda, const float* b,
            Index ldb, bool accumulate, float* c, Index ldc) override {
    // Few rows that stay in the cache while deep columns pass by. What every place of C costs once
    // counts where the depth is small.
    constexpr Index kDeep = 256, kFew = 256, kStay = 1 << 18, kRows = 96, kDeeper = 512;
    if (b_transposed && k >= kDeep && n <= kFew && m * k <= kStay && (m <= kRows || k >= kDeeper))
      return turned_product({m, n, k, a, lda, b, ldb, accumulate, c, ldc});
    constexpr Index kSmall = 1 << 20;
    const bool own = small_ || (looks_at_values() && m * n * k < kSmall);
    (own ? own_sgemm : sgemm)(b_transposed, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
  }

 private:
  const bool small_;
};

}  // namespace

std::shared_ptr<Backend> make_cpu_backend(std::shared_ptr<const model::ModelWeights> weights,
                                          const BackendOptions& options, std::size_t pack_halves,
                                          Index few_halves) {
  return std::make_shared<CpuBackend>(std::move(weights), options, pack_halves, few_halves);
}

}  // namespace unpack::backend
