#include "backend/cpu/gemm.h"

#include <algorithm>
#include <new>

#include "backend/cpu/onednn.h"
#include "backend/cpu/own_gemm.h"
#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend {

namespace {

// oneDNN must not wake a team of threads for a product: our tasks have the processors already, the
// team would spin between calls, and the sums would depend on how many there are.
class OneThread {
 public:
  explicit OneThread(const OneDnn& library) : library_(library), before_(library.max_threads()) {
    if (before_ != 1) library_.set_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) library_.set_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const OneDnn& library_;
  int before_;
};

// An empty sum, which oneDNN refuses and our loops would not write.
bool empty_product(Index m, Index n, Index k, bool accumulate, float* c, Index ldc) {
  if (m == 0 || n == 0) return true;
  for (Index r = 0; k == 0 && !accumulate && r < m; ++r) std::fill_n(c + r * ldc, n, 0.0F);
  return k == 0;
}

}  // namespace

bool small_for_gemm(std::size_t parameters) {
  constexpr std::size_t kSmall = 32'000'000;
  return parameters < kSmall && !onednn_asked_for();
}

void own_sgemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda,
               const float* b, Index ldb, bool accumulate, float* c, Index ldc) {
  static OwnGemm* const own = own_gemms().front().second;
  if (!empty_product(m, n, k, accumulate, c, ldc))
    own(b_transposed, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

void sgemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda, const float* b,
           Index ldb, bool accumulate, float* c, Index ldc) {
  static const OneDnn* const library = ready_onednn();
  if (empty_product(m, n, k, accumulate, c, ldc)) return;
  if (library == nullptr) {
    own_sgemm(b_transposed, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
    return;
  }
  const OneThread one(*library);
  const int status = library->sgemm('N', b_transposed ? 'T' : 'N', m, n, k, 1.0F, a, lda, b, ldb,
                                    accumulate ? 1.0F : 0.0F, c, ldc);
  constexpr int kOutOfMemory = 1;
  if (status == kOutOfMemory) throw std::bad_alloc();
  if (status != 0) throw InternalError("[sgemm] oneDNN status " + std::to_string(status));
}

void prepare_gemm() { ready_onednn(); }

std::string gemm_library() {
  if (const OneDnn* library = find_onednn()) return "oneDNN " + library->version;
  return own_gemm_name();
}

std::string own_gemm_name() { return "own products (" + own_gemms().front().first + ")"; }

std::string gemm_details() {
  const std::string instructions = onednn_instructions();
  return instructions.empty() ? gemm_library() : gemm_library() + " (" + instructions + ")";
}

}  // namespace unpack::backend
