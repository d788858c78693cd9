#include "backend/cpu/gemm.h"

#include <dnnl.h>
#include <omp.h>

#include <new>

#include "unpack/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace unpack {

namespace {

// Some virtual machines announce AMX but give no tiles (CPUID leaf 0x1D is empty); code for it
// would die. Cap the instruction set there.
void cap_instruction_set() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool tiles = __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) != 0 && a != 0;
  if (!tiles) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
#endif
}

// Tasks of the thread pool run with one OpenMP thread as it is. A call from anywhere else must not
// wake a team of threads for a small product: they would spin between calls, and the sums would
// depend on how many there are.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

struct Initialized {
  Initialized() { cap_instruction_set(); }
};

}  // namespace

void sgemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
           std::int64_t ldc) {
  static const Initialized initialized;
  if (m == 0 || n == 0) return;
  const OneThread one;
  const dnnl_status_t status = dnnl_sgemm('N', b_transposed ? 'T' : 'N', m, n, k, 1.0F, a, lda, b,
                                          ldb, accumulate ? 1.0F : 0.0F, c, ldc);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success)
    throw InternalError("[sgemm] oneDNN status " + std::to_string(static_cast<int>(status)));
}

std::string gemm_library() {
  const dnnl_version_t* v = dnnl_version();
  std::string isa = "portable";
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      isa = "sse4.1";
      break;
    case dnnl_cpu_isa_avx:
      isa = "avx";
      break;
    case dnnl_cpu_isa_avx2:
      isa = "avx2";
      break;
    case dnnl_cpu_isa_avx512_core:
      isa = "avx512";
      break;
    case dnnl_cpu_isa_avx512_core_vnni:
      isa = "avx512 vnni";
      break;
    case dnnl_cpu_isa_avx512_core_bf16:
      isa = "avx512 bf16";
      break;
    default:
      isa = "newest";
      break;
  }
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
         std::to_string(v->patch) + " (" + isa + ")";
}

}  // namespace unpack
