// Products of a few rows with weights as they are stored: what they take is reading the weights
// once, which a product in single precision could only do after all of them were widened.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/plugin/state.h"
#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kWide = 8;  // weights of 16 bytes

template <bool kBf16>
__device__ __forceinline__ void widen(const uint4& stored, float (&to)[kWide]) {
  const unsigned pairs[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kBf16) {
      to[2 * i] = base::bf16_value(pairs[i]);
      to[2 * i + 1] = base::bf16_value(pairs[i] >> 16);
    } else {  // as base::f16_value, by the instruction for two
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      to[2 * i] = v.x;
      to[2 * i + 1] = v.y;
    }
  }
}

// Rows a[m, k] that a step needs, times the scale of k. The halves of what a lane takes of a piece
// of kDepth lie apart, so that lanes read next to each other.
constexpr int kDepth = 32 * kWide;
__device__ __forceinline__ int place_of(int x) {
  return x / kDepth * kDepth + x % kWide / 4 * (kDepth / 2) + x % kDepth / kWide * 4 + x % 4;
}
template <int kRows, int kTaken>
__device__ __forceinline__ void take_rows(const UnpackFewRows& p, Index k0, float* shared) {
  const bool scaled = p.scale != nullptr && !p.scale_output;
  constexpr int kLoads = (kRows * kTaken / 4 + kThreads - 1) / kThreads;
  float4 value[kLoads], scale[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const int i = static_cast<int>(threadIdx.x) + load * kThreads;
    const int row = i / (kTaken / 4), x = i % (kTaken / 4) * 4;
    const bool there = row < kRows && row < p.m && k0 + x < p.k;
    value[load] =
        there ? *reinterpret_cast<const float4*>(p.a + row * p.k + k0 + x) : float4{0, 0, 0, 0};
    scale[load] =
        there && scaled ? *reinterpret_cast<const float4*>(p.scale + k0 + x) : float4{1, 1, 1, 1};
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const int i = static_cast<int>(threadIdx.x) + load * kThreads;
    const int row = i / (kTaken / 4), x = i % (kTaken / 4) * 4;
    if (row >= kRows) continue;
    const float4 v = value[load], by = scale[load];
    *reinterpret_cast<float4*>(shared + row * kTaken + place_of(x)) = float4{
        v.x * p.factor * by.x, v.y * p.factor * by.y, v.z * p.factor * by.z, v.w * p.factor * by.w};
  }
}

// W[n, k]: a warp has kOutputs columns of the result, its lanes parts of the depth.
template <bool kBf16, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads) dot_rows(const __grid_constant__ UnpackFewRows p) {
  constexpr int kSteps = kRows > 8 ? 2 : kRows > 4 ? 4 : 8;
  __shared__ __align__(16) float rows[kRows * kDepth * kSteps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index first =
      (static_cast<Index>(blockIdx.x) * kWarps + static_cast<Index>(threadIdx.x) / 32) * kOutputs;
  const auto* weights = static_cast<const uint16_t*>(p.weights);
  const uint16_t* from_output[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o)
    from_output[o] = weights + min(first + o, p.n - 1) * p.k + lane * kWide;
  const auto load = [&](Index k, uint4(&to)[kOutputs]) {
    const bool there = k + lane * kWide < p.k;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
      to[o] = there ? *reinterpret_cast<const uint4*>(from_output[o] + k) : uint4{};
  };
  float sum[kOutputs][kRows] = {};
  uint4 stored[kOutputs], next[kOutputs];
  load(0, stored);
  for (Index k0 = 0; k0 < p.k; k0 += kDepth * kSteps) {
    __syncthreads();
    take_rows<kRows, kDepth * kSteps>(p, k0, rows);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load(k0 + (step + 1) * kDepth, next);  // while this step's are used
      float w[kOutputs][kWide];
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        widen<kBf16>(stored[o], w[o]);
        stored[o] = next[o];
      }
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const float4* from =
            reinterpret_cast<const float4*>(rows + (m * kSteps + step) * kDepth) + lane;
        const float4 a = from[0], b = from[kDepth / 8];
        const float v[kWide] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < kWide; ++i) sum[o][m] = fmaf(w[o][i], v[i], sum[o][m]);
        }
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const Index n = first + o;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      float total = sum[o][m];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xFFFFFFFFU, total, step);
      if (lane == 0 && n < p.n && m < p.m)
        p.c[m * p.n + n] = p.scale != nullptr && p.scale_output ? total * p.scale[n] : total;
    }
  }
}

// W[k, n]: a lane has kWide columns of the result, the warps of a block and the blocks of a column
// parts of the depth, which are added up one after the other.
template <bool kBf16, int kRows>
__global__ void __launch_bounds__(kThreads)
    add_rows_up(const __grid_constant__ UnpackFewRows p, Index depth) {
  constexpr int kStep = 32;
  __shared__ __align__(16) float rows[kWarps][kRows * kStep];
  __shared__ float all[kRows][32 * kWide];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Index n = (static_cast<Index>(blockIdx.x) * 32 + lane) * kWide;
  const Index begin = static_cast<Index>(blockIdx.y) * depth, end = min(begin + depth, p.k);
  const Index each = (depth + kWarps - 1) / kWarps;
  const Index k_first = begin + warp * each, k_end = min(k_first + each, end);
  const auto* weights = static_cast<const uint16_t*>(p.weights);
  float sum[kRows][kWide] = {};
  for (Index k0 = k_first; k0 < k_end; k0 += kStep) {
    __syncwarp();
    for (int i = lane; i < kRows * kStep; i += 32) {
      const int m = i / kStep, x = i % kStep;
      float v = 0;
      if (m < p.m && k0 + x < k_end) {
        v = p.a[m * p.k + k0 + x] * p.factor;
        if (p.scale != nullptr && !p.scale_output) v *= p.scale[k0 + x];
      }
      rows[warp][m * kStep + x] = v;
    }
    __syncwarp();
    if (n < p.n) {
      const int steps = static_cast<int>(min(static_cast<Index>(kStep), k_end - k0));
#pragma unroll 4
      for (int x = 0; x < steps; ++x) {
        float w[kWide];
        widen<kBf16>(*reinterpret_cast<const uint4*>(weights + (k0 + x) * p.n + n), w);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          const float v = rows[warp][m * kStep + x];
#pragma unroll
          for (int i = 0; i < kWide; ++i) sum[m][i] = fmaf(w[i], v, sum[m][i]);
        }
      }
    }
  }
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          float& to = all[m][i * 32 + lane];
          to = turn == 0 ? sum[m][i] : to + sum[m][i];
        }
      }
    }
    __syncthreads();
  }
  float* out = p.work != nullptr ? p.work + static_cast<Index>(blockIdx.y) * p.m * p.n : p.c;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * 32 * kWide; i += kThreads) {
    const int m = i / (32 * kWide), x = i % (32 * kWide);
    const Index column = static_cast<Index>(blockIdx.x) * 32 * kWide + x;
    if (m >= p.m || column >= p.n) continue;
    const float total = all[m][x % kWide * 32 + x / kWide];
    out[m * p.n + column] =
        p.work == nullptr && p.scale != nullptr && p.scale_output ? total * p.scale[column] : total;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_parts_up(const __grid_constant__ UnpackFewRows p, int parts) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x, size = p.m * p.n;
  if (i >= size) return;
  float total = 0;
  for (int part = 0; part < parts; ++part) total += p.work[part * size + i];
  p.c[i] = p.scale != nullptr && p.scale_output ? total * p.scale[i % p.n] : total;
}

template <bool kBf16, int kRows>
void queue_rows(State& s, UnpackFewRows p) {
  if (p.transposed != 0) {
    constexpr int kOutputs = kRows > 4 ? 4 : 2;
    const auto blocks = static_cast<unsigned>((p.n + kWarps * kOutputs - 1) / (kWarps * kOutputs));
    dot_rows<kBf16, kRows, kOutputs><<<blocks, kThreads, 0, s.stream>>>(p);
    return;
  }
  const auto columns = static_cast<unsigned>((p.n + 32 * kWide - 1) / (32 * kWide));
  // Enough blocks for the chip, of at least 32 rows a warp.
  constexpr Index kBlocks = 512, kLeast = 32 * kWarps;
  const Index wanted = std::clamp<Index>(kBlocks / columns, 1, UNPACK_FEW_ROWS_PARTS);
  const Index depth = std::max((p.k + wanted - 1) / wanted, kLeast);
  const auto parts = static_cast<unsigned>((p.k + depth - 1) / depth);
  if (parts == 1) p.work = nullptr;
  add_rows_up<kBf16, kRows><<<dim3(columns, parts), kThreads, 0, s.stream>>>(p, depth);
  if (parts > 1) {
    add_parts_up<<<static_cast<unsigned>((p.m * p.n + kThreads - 1) / kThreads), kThreads, 0,
                   s.stream>>>(p, static_cast<int>(parts));
  }
}

template <bool kBf16>
void queue_type(State& s, const UnpackFewRows& p) {
  if (p.m <= 1) {
    queue_rows<kBf16, 1>(s, p);
  } else if (p.m <= 4) {
    queue_rows<kBf16, 4>(s, p);
  } else if (p.m <= 8) {
    queue_rows<kBf16, 8>(s, p);
  } else {
    queue_rows<kBf16, 16>(s, p);
  }
}

int queue(State& s, UnpackFewRows p) {
  if (p.n % kWide != 0 || p.k % kWide != 0) return fail("weights that are no whole pieces");
  // Sixteen rows at a time.
  for (Index left = p.m; left > 0; left -= 16) {
    p.m = std::min<Index>(left, 16);
    if (p.bf16) {
      queue_type<true>(s, p);
    } else {
      queue_type<false>(s, p);
    }
    p.a += p.m * p.k;
    p.c += p.m * p.n;
  }
  return check(cudaGetLastError(), "a launch");
}

}  // namespace

int few_rows(void* device, const UnpackFewRows* call) {
  State& s = of(device);
  if (s.profile == nullptr) return queue(s, *call);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue(s, *call);
  s.profile->end(s.stream,
                 call->m == 1            ? "one row with stored weights"
                 : call->transposed != 0 ? "few rows with stored weights"
                                         : "few rows with stored weights, turned",
                 2.0 * static_cast<double>(call->m) * static_cast<double>(call->n) *
                     static_cast<double>(call->k));
  return status;
}

}  // namespace unpack::backend::cuda
