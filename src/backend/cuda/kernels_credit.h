// Kernels of entries and folding, which all devices share.
#pragma once

#include "backend/cuda/kernel_base.h"
#include "backend/kernels/credit.h"

namespace unpack::backend::cuda {

using HeadNumerators = kernels::HeadNumerators<float>;
using TimesRows = kernels::TimesRows<float>;
using FoldSources = kernels::FoldSources<float>;
using FoldQueries = kernels::FoldQueries<float>;
using QueryEdges = kernels::QueryEdges<float>;
using SlotSums = kernels::SlotSums<float>;
using SpreadExperts = kernels::SpreadExperts<float>;

}  // namespace unpack::backend::cuda
