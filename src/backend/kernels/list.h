// The kernels that operations launch on any device.
#pragma once

#include "backend/kernels/credit.h"
#include "backend/kernels/forward.h"

// clang-format off
#define UNPACK_SHARED_KERNELS(X) \
  X(AddScaled) X(AddBias) X(Activate) X(ScaleShift) X(Normalize) X(CenterRows) X(Deviation) \
  X(ThroughNorm) X(SumSlots) X(FinishHead) X(CausalSoftmax) X(TakeRows) X(HeadNumerators) \
  X(TimesRows) X(FoldSources) X(FoldQueries) X(QueryEdges) X(SpreadExperts) X(SlotSums) \
  X(PullBack) X(ScaleByRow) X(WriterDots)
// clang-format on

namespace unpack::backend::kernels {

enum class Name : int {
#define UNPACK_SHARED_NAME(name) k##name,
  UNPACK_SHARED_KERNELS(UNPACK_SHARED_NAME)
#undef UNPACK_SHARED_NAME
};

// By the kernel with its parameters, of whatever scalar.
template <typename Kernel>
struct NameOf;
#define UNPACK_SHARED_NAME(name)                                    \
  template <typename T>                                             \
  struct NameOf<name<T>> { /* NOLINT(bugprone-macro-parentheses) */ \
    static constexpr Name kName = Name::k##name;                    \
  };
UNPACK_SHARED_KERNELS(UNPACK_SHARED_NAME)
#undef UNPACK_SHARED_NAME

}  // namespace unpack::backend::kernels
