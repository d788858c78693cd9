// oneDNN's single-precision product, opened at run time: where the library is not installed,
// unpack's own kernels do the work.
#pragma once

#include <string>

#include "base/index.h"

namespace unpack::backend {

// Whatever oneDNN 2 or 3 gives us. The C interface used here is the same in both.
struct OneDnn {
  // Row-major, on the calling thread where OpenMP is set to one.
  int (*sgemm)(char transa, char transb, Index m, Index n, Index k, float alpha, const float* a,
               Index lda, const float* b, Index ldb, float beta, float* c, Index ldc);
  int (*max_threads)();  // of OpenMP, for the calling thread
  void (*set_threads)(int n);
  std::string version;  // "2.6.3"
  std::string file;
};

// Opens the library at the first call; null where it is not there or not wanted. Fixes nothing.
// UNPACK_ONEDNN names a library file, or is "on" or "off".
const OneDnn* find_onednn();
bool onednn_asked_for();       // by that variable: then small models use it, too
std::string onednn_absence();  // why find_onednn() gives null

// The same, ready to be called: its instruction set is capped where the processor announces one
// that it does not give, and its kernels are made. Throws where there is no memory for them.
const OneDnn* ready_onednn();
std::string onednn_instructions();  // "avx2"; fixes the choice

}  // namespace unpack::backend
