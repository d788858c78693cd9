// Sums over the writers of the sizes of scores of keys and queries: a tile of scores is made by
// tensor cores, added up in registers, and never leaves the chip.
//
// Both factors are taken as the sum of two halves, each in a unit of its own, and three of their
// four products are made, which leaves 22 bits of every score.
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/plugin/state.h"
#include "backend/cuda/tile_rule.h"
#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

constexpr int kRows = 128, kColumns = 64, kThreads = 256, kPositions = 32;
constexpr int kColumnWarps = 2;  // and four of rows; each has 32 rows and 32 columns of a tile

// Rows of a factor lie 16 bytes more than their numbers apart, so that eight of them are read
// without a conflict.
template <int kDepth>
struct Shared {
  static constexpr int kPitch = kDepth + 8;
  __half rows[2][kRows][kPitch];
  __half columns[2][2][kColumns][kPitch];  // one is filled while another is used
  float reach[2][2][kColumns];             // what a column's mass and bound are
  float sum[kColumnWarps][kRows][kPositions + 1];
  float most[kColumnWarps][kRows][kPositions + 1];
};

struct Four {
  float x[4];
};

__device__ __forceinline__ Four load_four(const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

// Four numbers next to each other, high parts and low parts.
__device__ __forceinline__ void store_parts(const Four& v, float unit, __half* high, __half* low) {
  __half2 first[2], second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float a = v.x[2 * i] * unit, b = v.x[2 * i + 1] * unit;
    first[i] = __floats2half2_rn(a, b);
    second[i] = __floats2half2_rn(a - __low2float(first[i]), b - __high2float(first[i]));
  }
  *reinterpret_cast<uint2*>(high) = *reinterpret_cast<uint2*>(first);
  *reinterpret_cast<uint2*>(low) = *reinterpret_cast<uint2*>(second);
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const __half* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A block has kRows rows of one unit (the heads of a group where keys are scored, one head where
// queries are) and up to kPositions positions of columns.
template <int kDepth, bool kReach>
__global__ void __launch_bounds__(kThreads, 1)
    pair_sums_kernel(const __grid_constant__ UnpackPairSums p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<Shared<kDepth>*>(memory);
  constexpr int kFours = kDepth / 4, kLoads = kColumns * kFours / kThreads;
  static_assert(kColumns * kFours % kThreads == 0);
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
  const int warp_row = warp / kColumnWarps * 32, warp_column = warp % kColumnWarps;
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

  const Index own = p.keys ? p.own_groups : p.heads;
  const int tiles = static_cast<int>((p.visible + kColumns - 1) / kColumns);
  const int steps = static_cast<int>(end - begin) * tiles;
  Four next[kLoads];
  float next_reach[2] = {0, 0};
  const auto load = [&](int step) {
    const Index position = begin + step / tiles;
    const Index first = static_cast<Index>(step % tiles) * kColumns;
    const float* from =
        p.columns + (((position - p.first) * p.visible + first) * own + unit) * kDepth;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = thread + k * kThreads;
      const int column = i / kFours, x = i % kFours * 4;
      next[k] = first + column < p.visible ? load_four(from + column * own * kDepth + x) : Four{};
    }
    if constexpr (kReach) {
      const bool there = thread < kColumns && first + thread < p.visible;
      const Index at = position * p.reach_writers + first + thread;
      next_reach[0] = there ? p.mass[at] : 0.0F;
      next_reach[1] = there ? p.bound[at] : 0.0F;
    }
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = thread + k * kThreads;
      const int column = i / kFours, x = i % kFours * 4;
      store_parts(next[k], column_unit, &s.columns[buffer][0][column][x],
                  &s.columns[buffer][1][column][x]);
    }
    if constexpr (kReach) {
      if (thread < kColumns) {
        s.reach[buffer][0][thread] = next_reach[0];
        s.reach[buffer][1][thread] = next_reach[1];
      }
    }
  };
  load(0);
  store(0);
  __syncthreads();

  float sum[2][2] = {}, most[2][2] = {};
  for (int step = 0; step < steps; ++step) {
    const int buffer = step % 2;
    if (step + 1 < steps) load(step + 1);
    float c[2][4][4] = {};
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[2][2][4], b[2][2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          load_matrices(a[part][i],
                        &s.rows[part][warp_row + i * 16 + lane % 16][k + lane / 16 * 8]);
          load_matrices(b[part][i], &s.columns[buffer][part][warp_column * 32 + i * 16 + lane % 8 +
                                                             lane / 16 * 8][k + lane / 8 % 2 * 8]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int half = j % 2 * 2;
          multiply_add(c[i][j], a[1][i], b[0][j / 2][half], b[0][j / 2][half + 1]);
          multiply_add(c[i][j], a[0][i], b[1][j / 2][half], b[1][j / 2][half + 1]);
          multiply_add(c[i][j], a[0][i], b[0][j / 2][half], b[0][j / 2][half + 1]);
        }
      }
    }
    if (step % tiles == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i][0] = sum[i][1] = 0;
        if constexpr (kReach) most[i][0] = most[i][1] = 0;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float m[2] = {1, 1}, b[2] = {1, 1};
      if constexpr (kReach) {
        const int column = warp_column * 32 + j * 8 + lane % 4 * 2;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          m[x] = s.reach[buffer][0][column + x];
          b[x] = s.reach[buffer][1][column + x];
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float size = fabsf(c[i][j][x]);
          if constexpr (kReach) {
            sum[i][x / 2] += size * m[x % 2];
            most[i][x / 2] = fmaxf(most[i][x / 2], size * b[x % 2]);
          } else {
            sum[i][x / 2] += size;
          }
        }
      }
    }
    if (step % tiles == tiles - 1) {
      const int position = static_cast<int>(begin + step / tiles - out_first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float total = sum[i][half], largest = most[i][half];
#pragma unroll
          for (int x = 1; x < 4; x *= 2) {
            total += __shfl_xor_sync(0xFFFFFFFFU, total, x);
            if constexpr (kReach)
              largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, x));
          }
          if (lane % 4 == 0) {
            const int row = warp_row + i * 16 + half * 8 + lane / 4;
            s.sum[warp_column][row][position] = total;
            if constexpr (kReach) s.most[warp_column][row][position] = largest;
          }
        }
      }
    }
    if (step + 1 < steps) store(1 - buffer);
    __syncthreads();
  }

  // Pairs [head, q (q + 1) / 2 + s]: sources next to each other.
  const auto put = [&](Index row, Index position) {
    if (row >= all_rows || position < begin || position >= end) return;
    const Index other = row / each, head = p.keys ? unit * group + row % each : unit;
    const Index q = p.keys ? other : position, source = p.keys ? position : other;
    if (source > q || source < base::first_in_window(q, p.window)) return;
    const float factor = fabsf(p.scale / p.dev[position]) / row_unit / column_unit;
    const Index at = head * p.pairs + q * (q + 1) / 2 + source;
    const int r = static_cast<int>(row - row0), x = static_cast<int>(position - out_first);
    p.sum[at] = factor * (s.sum[0][r][x] + s.sum[1][r][x]);
    if constexpr (kReach) p.most[at] = factor * fmaxf(s.most[0][r][x], s.most[1][r][x]);
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
  constexpr std::size_t kBytes = sizeof(Shared<kDepth>);
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
  const std::size_t wanted = e == 64   ? sizeof(Shared<64>)
                             : e == 80 ? sizeof(Shared<80>)
                             : e == 96 ? sizeof(Shared<96>)
                                       : sizeof(Shared<128>);
  return wanted <= static_cast<std::size_t>(most) ? 1 : 0;
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
