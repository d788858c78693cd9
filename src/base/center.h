// Centring, which is all that a norm does to a writer beside dividing it.
#pragma once

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::base {

// A row less its mean, which an RMS leaves in.
template <typename T>
void center(Norm norm, T* row, Index n) {
  if (norm != Norm::layer) return;
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += row[i];
  const T mean = sum / n;
  for (Index i = 0; i < n; ++i) row[i] -= mean;
}

}  // namespace unpack::base
