// Sums over the writers of the sizes of scores of keys and queries: a tile of scores is made by
// tensor cores, added up in registers, and never leaves the chip.
//
// Both factors are taken as the sum of two halves, each in a unit of its own, and three of their
// four products are made, which leaves 22 bits of every score.
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/plugin/state.h"
#include "backend/cuda/tile_rule.h"
#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

constexpr int kRows = 128, kColumns = 64, kThreads = 256, kPositions = 32;
constexpr int kStages = 4;  // tiles of columns on the chip: two are multiplied, two on their way
constexpr int kAtom = 64;   // halves of a row that lie together, 128 bytes

// Rows lie 16 bytes more than their numbers apart, so that eight of them are read without a
// conflict. Columns lie as Hopper's tensor cores read them by themselves: kAtom numbers of every
// column together, their eighths of 16 bytes in an order of each column's own.
template <int kDepth, bool kReach>
struct Shared {
  static constexpr int kAtoms = (kDepth + kAtom - 1) / kAtom, kSums = kReach ? 2 : 1;
  using Columns = __half[kAtoms][kColumns][kAtom];
  union {
    __half rows[2][kRows][kDepth + 8];  // on their way to registers
    Columns columns[kStages][2];        // both parts
  };
  float reach[kStages][kSums][kColumns];  // what a column leads to
  float sums[kSums][kRows][kPositions + 1];
};
constexpr std::size_t kAligned = 1024;  // what the columns' order counts from

__device__ __forceinline__ int place_of_eighth(int column, int eighth) {
  return (eighth ^ (column % 8)) * 8;
}

struct Four {
  float x[4];
};

__device__ __forceinline__ Four load_four(const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

// Two numbers next to each other as high and low parts.
__device__ __forceinline__ void take_apart(float a, float b, __half2& high, __half2& low) {
  high = __floats2half2_rn(a, b);
  low = __floats2half2_rn(a - __low2float(high), b - __high2float(high));
}

__device__ __forceinline__ void store_parts(const Four& v, float unit, __half* high, __half* low) {
  __half2 first[2], second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    take_apart(v.x[2 * i] * unit, v.x[2 * i + 1] * unit, first[i], second[i]);
  *reinterpret_cast<uint2*>(high) = *reinterpret_cast<uint2*>(first);
  *reinterpret_cast<uint2*>(low) = *reinterpret_cast<uint2*>(second);
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// So many bytes on their way to the chip; zeros where nothing is there.
template <int kBytes>
__device__ __forceinline__ void fetch(void* to, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 4 : 0));
  }
}
__device__ __forceinline__ void end_of_fetches() { asm volatile("cp.async.commit_group;\n"); }
// All but the last `kLeft` groups of them are there.
template <int kLeft>
__device__ __forceinline__ void wait_for_fetches() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft));
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const __half* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)));
}

// A warp's 16 rows, which stay in its registers: both parts, sixteen numbers of a row at a time.
template <int kDepth>
using RowParts = unsigned[2][kDepth / 16][4];
// Its scores of a tile: [column / 8][row / 8 * 2 + column % 2] of lane row % 8 * 4 + column % 8
// / 2.
using Scores = float[kColumns / 8][4];

// What is multiplied for sixteen numbers, small products first.
constexpr int kProducts = 3;
__device__ constexpr int part_of_rows(int product) { return product == 0 ? 1 : 0; }
__device__ constexpr int part_of_columns(int product) { return product == 1 ? 1 : 0; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Hopper's products of four warps, which read the columns from shared memory by themselves, go on
// while the warps do other things.
__device__ __forceinline__ void multiply_add(Scores& c, const unsigned (&a)[4],
                                             std::uint64_t columns, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, keep, 1, 1, 0;\n"
      "}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(keep));
}

// Columns kAtom numbers wide in their order, eight of them 1,024 bytes after the last eight.
__device__ __forceinline__ std::uint64_t described(const void* columns) {
  constexpr std::uint64_t kEightColumns = std::uint64_t{1024 / 16} << 32, kOne = 1U << 16,
                          kOrder = std::uint64_t{1} << 62;
  return (shared_address(columns) & 0x3FFFFU) >> 4 | kOne | kEightColumns | kOrder;
}

template <int kDepth, bool kReach>
__device__ __forceinline__ void start_products(
    Scores& c, const RowParts<kDepth>& a,
    const typename Shared<kDepth, kReach>::Columns (&columns)[2]) {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int product = 0; product < kProducts; ++product)
      multiply_add(c, a[part_of_rows(product)][k],
                   described(&columns[part_of_columns(product)][k * 16 / kAtom][0][k * 16 % kAtom]),
                   k > 0 || product > 0 ? 1 : 0);
  }
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// All but the last `kLeft` tiles are multiplied.
template <int kLeft>
__device__ __forceinline__ void wait_for_products(Scores& c) {
  asm volatile("wgmma.wait_group.sync.aligned %32;\n"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]),
                 "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]),
                 "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]),
                 "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
                 "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]),
                 "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
                 "+f"(c[7][2]), "+f"(c[7][3])
               : "n"(kLeft)
               : "memory");
}

// What this thread fetched is there for the tensor cores as well.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

#else

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int kDepth, bool kReach>
__device__ __forceinline__ void start_products(
    Scores& c, const RowParts<kDepth>& a,
    const typename Shared<kDepth, kReach>::Columns (&columns)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (auto& eight : c) {
#pragma unroll
    for (float& x : eight) x = 0;
  }
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    unsigned b[2][kColumns / 16][4];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i) {
        const int column = i * 16 + lane % 8 + lane / 16 * 8, at = k * 2 + lane / 8 % 2;
        load_matrices(b[part][i],
                      &columns[part][k * 16 / kAtom][column][place_of_eighth(column, at % 8)]);
      }
    }
    // Eight sums take turns, for one waits for its last product.
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const auto& of = b[part_of_columns(product)][j / 2];
        multiply_add(c[j], a[part_of_rows(product)][k], of[j % 2 * 2], of[j % 2 * 2 + 1]);
      }
    }
  }
}

template <int kLeft>
__device__ __forceinline__ void wait_for_products(Scores&) {}
__device__ __forceinline__ void show_to_products() {}

#endif

// Every run of kDepth numbers in place: its high parts, then its low parts. A warp has a run.
template <int kDepth>
__global__ void __launch_bounds__(kThreads)
    take_columns_apart(float* columns, Index runs, const float* unit) {
  constexpr int kPairs = kDepth / 2, kEach = (kPairs + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float by = *unit;
  constexpr Index kWarps = kThreads / 32;
  for (Index run = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32; run < runs;
       run += static_cast<Index>(gridDim.x) * kWarps) {
    float* const from = columns + run * kDepth;
    float2 v[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int pair = lane + k * 32;
      if (pair < kPairs) v[k] = reinterpret_cast<const float2*>(from)[pair];
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int pair = lane + k * 32;
      if (pair >= kPairs) continue;
      auto* const to = reinterpret_cast<__half2*>(from) + pair;
      take_apart(v[k].x * by, v[k].y * by, to[0], to[kPairs]);
    }
    __syncwarp();
  }
}

// A block has kRows rows of one unit (the heads of a group where keys are scored, one head where
// queries are) and up to kPositions positions of columns, which are in parts already. Its rows stay
// in registers: a warp's are the same for all columns.
template <int kDepth, bool kReach>
__global__ void __launch_bounds__(kThreads, 1)
    pair_sums_kernel(const __grid_constant__ UnpackPairSums p) {
  extern __shared__ unsigned char memory[];
  auto& s = *reinterpret_cast<Shared<kDepth, kReach>*>(
      memory + (kAligned - shared_address(memory) % kAligned) % kAligned);
  constexpr int kFours = kDepth / 4;
  const Index group = p.heads / p.own_groups;
  const Index each = p.keys ? group : 1;  // rows of a position
  const Index unit = blockIdx.y;
  const Index row0 = static_cast<Index>(blockIdx.x) * kRows, all_rows = p.length * each;
  const Index last_row = min(row0 + kRows, all_rows) - 1;
  const Index other_first = row0 / each, other_last = last_row / each;
  // Positions of columns that some row meets.
  Index begin = p.first + static_cast<Index>(blockIdx.z) * kPositions;
  Index end = min(begin + kPositions, p.first + p.count);
  const Index out_first = begin;
  if (p.keys) {
    end = min(end, other_last + 1);
    begin = max(begin, base::first_in_window(other_first, p.window));
  } else {
    begin = max(begin, other_first);
    if (p.window > 0) end = min(end, other_last + p.window);
  }
  if (begin >= end) return;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const float row_unit = *p.row_unit, column_unit = *p.column_unit;
  // The rows.
  const Index row_head = p.keys ? unit * group : unit / group;
  for (int i = thread; i < kRows * kFours; i += kThreads) {
    const int r = i / kFours, x = i % kFours * 4;
    const Index row = row0 + r;
    Four v{};
    if (row < all_rows)
      v = load_four(p.rows + (row / each * p.row_heads + row_head + row % each) * kDepth + x);
    store_parts(v, row_unit, &s.rows[0][r][x], &s.rows[1][r][x]);
  }
  __syncthreads();
  RowParts<kDepth> a;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
      load_matrices(a[part][k], &s.rows[part][warp * 16 + lane % 16][k * 16 + lane / 16 * 8]);
  }
  __syncthreads();

  const Index own = p.keys ? p.own_groups : p.heads;
  const int tiles = static_cast<int>((p.visible + kColumns - 1) / kColumns);
  const int steps = static_cast<int>(end - begin) * tiles;
  // Pieces of 16 bytes; a column in parts has kFours.
  constexpr int kLoads = kColumns * kFours / kThreads;
  static_assert(kColumns * kFours % kThreads == 0);
  Index next_position = begin;
  int next_tile = 0;
  const auto fetch_next = [&](int stage) {
    const Index position = next_position;
    const int first = next_tile * kColumns;
    if (position < end) {
      const float* from =
          p.columns + (((position - p.first) * p.visible + first) * own + unit) * kDepth;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int i = thread + k * kThreads;
        const int column = i / kFours, piece = i % kFours;
        const int part = piece / (kFours / 2), eighth = piece % (kFours / 2);
        const bool there = first + column < p.visible;
        fetch<16>(&s.columns[stage][part][eighth / 8][column][place_of_eighth(column, eighth % 8)],
                  from + (there ? column * own * kDepth + piece * 4 : 0), there);
      }
      if constexpr (kReach) {
        if (thread < 2 * kColumns) {
          const int which = thread / kColumns, column = thread % kColumns;
          const bool there = first + column < p.visible;
          fetch<4>(&s.reach[stage][which][column],
                   (which == 0 ? p.mass : p.bound) + position * p.reach_writers + first +
                       (there ? column : 0),
                   there);
        }
      }
    }
    if (++next_tile == tiles) {
      next_tile = 0;
      ++next_position;
    }
    end_of_fetches();
  };

  float sum[2] = {}, most[2] = {};
  int tile = 0, position = static_cast<int>(begin - out_first);
  const auto add_up = [&](const Scores& c, int stage) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      float m[2] = {1, 1}, b[2] = {1, 1};
      if constexpr (kReach) {
        const int column = j * 8 + lane % 4 * 2;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          m[x] = s.reach[stage][0][column + x];
          b[x] = s.reach[stage][1][column + x];
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float size = fabsf(c[j][x]);
        if constexpr (kReach) {
          sum[x / 2] += size * m[x % 2];
          most[x / 2] = fmaxf(most[x / 2], size * b[x % 2]);
        } else {
          sum[x / 2] += size;
        }
      }
    }
    if (++tile < tiles) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[half], largest = most[half];
#pragma unroll
      for (int x = 1; x < 4; x *= 2) {
        total += __shfl_xor_sync(0xFFFFFFFFU, total, x);
        if constexpr (kReach) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, x));
      }
      if (lane % 4 == 0) {
        const int row = warp * 16 + half * 8 + lane / 4;
        s.sums[0][row][position] = total;
        if constexpr (kReach) s.sums[1][row][position] = largest;
      }
      sum[half] = most[half] = 0;
    }
    tile = 0;
    ++position;
  };

  // While a tile is multiplied, the one before it is added up and the one behind the next fetched.
  Scores even, odd;
  const auto step_on = [&](int step, Scores& now, Scores& before) {
    wait_for_fetches<1>();
    show_to_products();
    __syncthreads();  // and nobody uses the stage that is filled next
    start_products<kDepth, kReach>(now, a, s.columns[step % kStages]);
    fetch_next((step + 2) % kStages);
    if (step == 0) return;
    wait_for_products<1>(before);
    add_up(before, (step - 1) % kStages);
  };
  fetch_next(0);
  fetch_next(1);
  for (int step = 0; step < steps; step += 2) {
    step_on(step, even, odd);
    if (step + 1 < steps) step_on(step + 1, odd, even);
  }
  if (steps % 2 == 1) {
    wait_for_products<0>(even);
    add_up(even, (steps - 1) % kStages);
  } else {
    wait_for_products<0>(odd);
    add_up(odd, (steps - 1) % kStages);
  }
  wait_for_fetches<0>();
  __syncthreads();

  // Pairs [head, q (q + 1) / 2 + s]: sources next to each other.
  const auto put = [&](Index row, Index at_position) {
    if (row >= all_rows || at_position < begin || at_position >= end) return;
    const Index other = row / each, head = p.keys ? unit * group + row % each : unit;
    const Index q = p.keys ? other : at_position, source = p.keys ? at_position : other;
    if (source > q || source < base::first_in_window(q, p.window)) return;
    const float factor = fabsf(p.scale / p.dev[at_position]) / row_unit / column_unit;
    const Index at = head * p.pairs + q * (q + 1) / 2 + source;
    const int r = static_cast<int>(row - row0), x = static_cast<int>(at_position - out_first);
    p.sum[at] = factor * s.sums[0][r][x];
    if constexpr (kReach) p.most[at] = factor * s.sums[1][r][x];
  };
  for (int i = thread; i < kRows * kPositions; i += kThreads) {
    if (p.keys) {
      put(row0 + i / kPositions, out_first + i % kPositions);
    } else {
      put(row0 + i % kRows, out_first + i / kRows);
    }
  }
}

template <int kDepth, bool kReach>
int run(State& s, const UnpackPairSums& p) {
  constexpr std::size_t kBytes = sizeof(Shared<kDepth, kReach>) + kAligned;
  if (check(cudaFuncSetAttribute(pair_sums_kernel<kDepth, kReach>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kBytes)),
            "a kernel"))
    return 1;
  const Index each = p.keys ? p.heads / p.own_groups : 1;
  const dim3 blocks(static_cast<unsigned>((p.length * each + kRows - 1) / kRows),
                    static_cast<unsigned>(p.keys ? p.own_groups : p.heads),
                    static_cast<unsigned>((p.count + kPositions - 1) / kPositions));
  pair_sums_kernel<kDepth, kReach><<<blocks, kThreads, kBytes, s.stream>>>(p);
  return check(cudaGetLastError(), "a launch");
}

template <int kDepth>
int run(State& s, const UnpackPairSums& p) {
  const Index runs = p.count * p.visible * (p.keys ? p.own_groups : p.heads);
  constexpr Index kWarps = kThreads / 32, kMostBlocks = Index{1} << 20;
  take_columns_apart<kDepth>
      <<<static_cast<unsigned>(std::min((runs + kWarps - 1) / kWarps, kMostBlocks)), kThreads, 0,
         s.stream>>>(p.columns, runs, p.column_unit);
  if (check(cudaGetLastError(), "a launch")) return 1;
  return p.mass != nullptr ? run<kDepth, true>(s, p) : run<kDepth, false>(s, p);
}

int queue(State& s, const UnpackPairSums& p) {
  switch (p.e) {
    case 64:
      return run<64>(s, p);
    case 80:
      return run<80>(s, p);
    case 96:
      return run<96>(s, p);
    case 128:
      return run<128>(s, p);
    default:
      return fail("heads of another width");
  }
}

}  // namespace

int pair_sums_fit(void* device, Index e) {
  int most = 0;
  if (!on_chip_depth(e) || cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                  of(device).id) != cudaSuccess)
    return 0;
  const std::size_t wanted = e == 64   ? sizeof(Shared<64, true>)
                             : e == 80 ? sizeof(Shared<80, true>)
                             : e == 96 ? sizeof(Shared<96, true>)
                                       : sizeof(Shared<128, true>);
  return wanted + kAligned <= static_cast<std::size_t>(most) ? 1 : 0;
}

int pair_sums(void* device, const UnpackPairSums* call) {
  State& s = of(device);
  if (s.profile == nullptr) return queue(s, *call);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue(s, *call);
  // Of pairs that meet, three products.
  const double rows = static_cast<double>(call->length) * static_cast<double>(call->heads) / 2;
  s.profile->end(s.stream, call->mass != nullptr ? "pair sums and reach" : "pair sums",
                 6 * rows * static_cast<double>(call->count) * static_cast<double>(call->visible) *
                     static_cast<double>(call->e));
  return status;
}

}  // namespace unpack::backend::cuda
