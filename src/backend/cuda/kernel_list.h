// Every kernel with how many threads of the GPU share one row (0: a map kernel). The order is part
// of the plugin's version.
#pragma once

#include "backend/cuda/kernels_credit.h"
#include "backend/cuda/kernels_edges.h"
#include "backend/cuda/kernels_experts.h"
#include "backend/cuda/kernels_forward.h"
#include "backend/cuda/kernels_reads.h"
#include "backend/cuda/kernels_scores.h"
#include "backend/cuda/kernels_split.h"
#include "backend/cuda/kernels_sweep.h"

// clang-format off
#define UNPACK_KERNELS(X) \
  X(AddScaled, 0) X(AddBias, 0) X(Activate, 0) X(Widen, 0) X(ScaleShift, 0) X(ColumnSums, 0) \
  X(Normalize, 256) X(CenterRows, 256) X(FinishHead, 32) X(CausalSoftmax, 128) X(StoredDots, 32) \
  X(PullBack, 0) X(FinishProjected, 32) X(TileMoments, 0) X(TileSums, 32) X(ValueSums, 32) \
  X(NeuronSums, 0) X(NeuronNorms, 256) X(ScaleByRow, 0) X(CenterColumns, 0) X(WriterDots, 32) \
  X(HeadNumerators, 32) X(TimesRows, 0) X(FoldSources, 64) X(FoldQueries, 64) X(QueryEdges, 0) \
  X(HeadShares, 32) X(ValueEdges, 0) X(NeuronShares, 256) X(ShareRows, 128) X(TakeRows, 0) \
  X(PassNeurons, 128) X(KeyCredit, 32) X(ValueCredit, 0) X(CenteredKeys, 0) X(PassHeads, 128) \
  X(Deviation, 256) X(ThroughNorm, 0) X(SumSlots, 0) X(SlotSums, 128) X(PickExperts, 32) \
  X(SpreadExperts, 32) X(SlotNorms, 0) X(StartReach, 0) X(RowReach, 32) X(KeyReach, 128) \
  X(ReachInUnits, 128) X(KeyPairReach, 32) X(HeadReach, 32) X(NeuronReach, 0) X(ReadShares, 32) \
  X(ReadNeurons, 256) X(ScaleAll, 0) X(ColumnMedians, 0) X(HeadWays, 0) X(AddWays, 0) \
  X(EdgeMasses, 128) X(EdgeTotals, 0) X(AddRows, 0) X(EdgesFrom, 0) X(EdgesIn, 32) X(SplitRows, 0) \
  X(PlaceRows, 0) X(SplitScaled, 0) X(LargestOfRuns, 256) X(LargestOfWeights, 256) \
  X(UnitOfParts, 256) X(StoredRows, 0) X(SumWriters, 0) X(ReadSums, 32) \
  X(PairDots, 128) X(StackParts, 0) X(StackHeads, 256) X(QueriesOfOne, 32) X(KeysOfOne, 128) \
  X(NonFinite, 256)
// clang-format on

namespace unpack::backend::cuda {

enum class KernelId : int {
#define UNPACK_KERNEL_ID(name, threads) k##name,
  UNPACK_KERNELS(UNPACK_KERNEL_ID)
#undef UNPACK_KERNEL_ID
      kCount
};

template <typename Kernel>
struct KernelTraits;
#define UNPACK_KERNEL_TRAITS(name, threads)            \
  template <>                                          \
  struct KernelTraits<name> {                          \
    static constexpr KernelId kId = KernelId::k##name; \
    static constexpr int kThreads = threads;           \
  };
UNPACK_KERNELS(UNPACK_KERNEL_TRAITS)
#undef UNPACK_KERNEL_TRAITS

}  // namespace unpack::backend::cuda
