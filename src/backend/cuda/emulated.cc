#include "backend/cuda/emulated.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cuda/kernel_list.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

thread_local std::string last_error;

const char* error() { return last_error.c_str(); }

int fail(const std::string& text) {
  last_error = text;
  return 1;
}

// All products that can be split are, so that tests see them, and small prompts take several tiles;
// unless a test says otherwise.
std::atomic<Index> tensor_work = 0, tile_bytes = kEmulatedTile;

// Of all emulated devices together.
std::atomic<Index> launches = 0, products = 0, requests = 0, fills = 0;

int open_device(int, void** device) {
  static int here = 0;
  *device = &here;
  return 0;
}

void close_device(void*) {}

int info(void*, UnpackDeviceInfo* out) {
  constexpr char kName[] = "emulated on the CPU";
  std::memcpy(out->name, kName, sizeof kName);
  out->memory_free = std::uint64_t{1} << 33;
  out->memory_total = std::uint64_t{1} << 33;
  out->tensor_work = tensor_work;
  out->tile_bytes = tile_bytes;
  out->few_rows = 3;
  return 0;
}

int out_of_memory() { return last_error == "out of memory" ? 1 : 0; }

// Of all emulated devices together.
std::atomic<std::uint64_t> in_use = 0, peak = 0, held = 0;

void raise(std::atomic<std::uint64_t>& most, std::uint64_t to) {
  std::uint64_t before = most;
  while (before < to && !most.compare_exchange_weak(before, to)) {
  }
}

int memory_use(void*, int start_again, UnpackDeviceMemory* out) {
  out->peak = peak;
  out->held = held;
  if (start_again != 0) peak = in_use.load();
  return 0;
}

// The size of a piece of memory stands in front of it.
constexpr std::size_t kFront = alignof(std::max_align_t);

int allocate(void*, std::size_t bytes, void** out) {
  ++requests;
  auto* whole = static_cast<std::byte*>(std::malloc(bytes + kFront));
  if (whole == nullptr) return fail("out of memory");
  std::memcpy(whole, &bytes, sizeof bytes);
  *out = whole + kFront;
  const std::uint64_t now = in_use += bytes;
  raise(peak, now);
  raise(held, now);
  // What nobody writes must not look like zeros.
  std::memset(*out, 0xFF, bytes);
  return 0;
}

void release(void*, void* memory) {
  if (memory == nullptr) return;
  std::byte* whole = static_cast<std::byte*>(memory) - kFront;
  std::size_t bytes = 0;
  std::memcpy(&bytes, whole, sizeof bytes);
  in_use -= bytes;
  std::free(whole);
}

int zero(void*, void* memory, std::size_t bytes) {
  ++fills;
  std::memset(memory, 0, bytes);
  return 0;
}

int move(void*, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
  return 0;
}

// In parts of an odd size, which no row of a matrix has.
int fill_parts(void*, void* to, UnpackFill fill, const void* context, std::size_t bytes) {
  constexpr std::size_t kPart = 1001;
  for (std::size_t at = 0; at < bytes; at += kPart)
    fill(context, static_cast<std::byte*>(to) + at, at, std::min(kPart, bytes - at));
  return 0;
}

int nothing(void*) { return 0; }

// A factor [rows, cols] as the device's tensor cores would see it, without gaps.
std::vector<float> seen_factor(UnpackFactors factors, const void* from, Index offset, Index rows,
                               Index cols, Index ld) {
  std::vector<float> out(rows * cols);
  for (Index i = 0; i < rows * cols; ++i) {
    const Index at = offset + i / cols * ld + i % cols;
    if (factors == UNPACK_FACTORS_TF32) {
      out[i] = base::float_of_bits(base::bits_of_float(static_cast<const float*>(from)[at]) &
                                   ~kBelowTf32);
      continue;
    }
    const std::uint16_t half = static_cast<const std::uint16_t*>(from)[at];
    out[i] = factors == UNPACK_FACTORS_BF16 ? base::bf16_value(half) : base::f16_value(half);
  }
  return out;
}

int gemm(void* device, UnpackFactors factors, const UnpackGemm* g);

// With A the right way round.
int gemm_of_turned(UnpackFactors factors, UnpackGemm g) {
  std::vector<float> single;
  std::vector<std::uint16_t> halves;
  const Index each = g.m * g.k;
  const auto turn = [&](auto& to) {
    using T = std::remove_cvref_t<decltype(to[0])>;
    const T* from = static_cast<const T*>(g.a);
    for (Index i = 0; i < each * g.batch; ++i)
      to.push_back(from[i / each * g.stride_a + i % g.k * g.lda + i % each / g.k]);
    g.a = to.data();
  };
  if (factors == UNPACK_FACTORS_HALVES || factors == UNPACK_FACTORS_BF16) {
    turn(halves);
  } else {
    turn(single);
  }
  g.transposed &= ~UNPACK_A_TRANSPOSED;
  g.lda = g.k;
  g.stride_a = each;
  return gemm(nullptr, factors, &g);
}

int gemm(void*, UnpackFactors factors, const UnpackGemm* g) {
  try {
    const bool turned = (g->transposed & UNPACK_B_TRANSPOSED) != 0;
    if ((g->transposed & UNPACK_A_TRANSPOSED) != 0) return gemm_of_turned(factors, *g);
    for (Index b = 0; b < g->batch; ++b) {
      float* c = g->c + b * g->stride_c;
      if (factors == UNPACK_FACTORS_SINGLE) {
        sgemm(turned, g->m, g->n, g->k, static_cast<const float*>(g->a) + b * g->stride_a, g->lda,
              static_cast<const float*>(g->b) + b * g->stride_b, g->ldb, g->accumulate != 0, c,
              g->ldc);
        continue;
      }
      const Index b_cols = turned ? g->k : g->n;
      const auto left = seen_factor(factors, g->a, b * g->stride_a, g->m, g->k, g->lda);
      const auto right =
          seen_factor(factors, g->b, b * g->stride_b, turned ? g->n : g->k, b_cols, g->ldb);
      sgemm(turned, g->m, g->n, g->k, left.data(), g->k, right.data(), b_cols, g->accumulate != 0,
            c, g->ldc);
    }
    return 0;
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}

int scaled_gemm(void* device, UnpackFactors factors, const UnpackGemm* g, const float* times) {
  std::vector<float> made(static_cast<std::size_t>(g->batch * g->m * g->n));
  UnpackGemm apart = *g;
  apart.accumulate = 0;
  apart.c = made.data();
  apart.ldc = g->n;
  apart.stride_c = g->m * g->n;
  if (const int status = gemm(device, factors, &apart); status != 0) return status;
  for (Index i = 0; i < g->batch * g->m * g->n; ++i) {
    float& to =
        g->c[i / apart.stride_c * g->stride_c + i % apart.stride_c / g->n * g->ldc + i % g->n];
    to = made[i] * *times + (g->accumulate != 0 ? to : 0.0F);
  }
  return 0;
}

int few_rows(void*, const UnpackFewRows* p) {
  const int type = p->bf16 != 0 ? kBf16 : kF16;
  for (Index i = 0; i < p->m * p->n; ++i) {
    const Index row = i / p->n, n = i % p->n;
    double sum = 0;
    for (Index k = 0; k < p->k; ++k) {
      double x = static_cast<double>(p->a[row * p->k + k] * p->factor) *
                 stored_value(p->weights, type, p->transposed != 0 ? n * p->k + k : k * p->n + n);
      if (p->scale != nullptr && p->scale_output == 0) x *= p->scale[k];
      sum += x;
    }
    if (p->scale != nullptr && p->scale_output != 0) sum *= p->scale[n];
    p->c[i] = sum;
  }
  return 0;
}

// Heads of some widths, so that tests see both ways.
int pair_sums_fit(void*, Index e) { return e % 4 == 0 ? 1 : 0; }

// The two parts that tensor cores are given.
struct Taken {
  Taken(float x, float unit)
      : high(base::f16_value(f16_bits(x * unit))),
        low(base::f16_value(f16_bits(x * unit - high))) {}
  float high, low;
};

int pair_sums(void*, const UnpackPairSums* p) {
  const Index group = p->heads / p->own_groups, own = p->keys ? p->own_groups : p->heads;
  for (Index h = 0; h < p->heads; ++h) {
    for (Index at = p->first; at < p->first + p->count; ++at) {
      const Index from = p->keys ? at : base::first_in_window(at, p->window);
      const Index end = !p->keys        ? at + 1
                        : p->window > 0 ? std::min(p->length, at + p->window)
                                        : p->length;
      for (Index other = from; other < end; ++other) {
        const float* row = p->rows + (other * p->row_heads + (p->keys ? h : h / group)) * p->e;
        double sum = 0, most = 0;
        for (Index j = 0; j < p->visible; ++j) {
          const float* column =
              p->columns +
              (((at - p->first) * p->visible + j) * own + (p->keys ? h / group : h)) * p->e;
          double score = 0;
          for (Index x = 0; x < p->e; ++x) {
            const Taken a(row[x], *p->row_unit), b(column[x], *p->column_unit);
            score += static_cast<double>(a.high) * b.high + static_cast<double>(a.high) * b.low +
                     static_cast<double>(a.low) * b.high;
          }
          const Index reach = at * p->reach_writers + j;
          sum += std::fabs(score) * (p->mass != nullptr ? p->mass[reach] : 1);
          if (p->mass != nullptr)
            most = std::max(most, std::fabs(score) * static_cast<double>(p->bound[reach]));
        }
        const double factor =
            std::fabs(static_cast<double>(p->scale / p->dev[at])) / *p->row_unit / *p->column_unit;
        const Index q = p->keys ? other : at, s = p->keys ? at : other;
        const Index to = h * p->pairs + pairs_before(q) + s;
        p->sum[to] = factor * sum;
        if (p->mass != nullptr) p->most[to] = factor * most;
      }
    }
  }
  return 0;
}

template <typename Kernel>
int run(const void* parameters, std::size_t bytes, Index count) {
  if (bytes != sizeof(Kernel)) return fail("a kernel's parameters have another size");
  Kernel kernel;
  std::memcpy(&kernel, parameters, sizeof kernel);
  for (Index i = 0; i < count; ++i) {
    if constexpr (KernelTraits<Kernel>::kThreads == 0) {
      kernel(i);
    } else {
      HostGroup group;
      kernel(group, i);
    }
  }
  return 0;
}

int launch(void*, int id, const void* parameters, std::size_t bytes, Index count) {
  ++launches;
  switch (static_cast<KernelId>(id)) {
#define UNPACK_RUN_KERNEL(name, threads) \
  case KernelId::k##name:                \
    return run<name>(parameters, bytes, count);
    UNPACK_KERNELS(UNPACK_RUN_KERNEL)
#undef UNPACK_RUN_KERNEL
    default:
      return fail("no such kernel");
  }
}

template <auto kFunction, typename... Arguments>
int counted(Arguments... arguments) {
  ++products;
  return kFunction(arguments...);
}

}  // namespace

EmulatedWork emulated_work() { return {launches, products, requests, fills}; }

void set_emulated(Index tile, Index tensor) {
  tile_bytes = tile;
  tensor_work = tensor;
}

const UnpackDeviceTable* emulated_table() {
  static const UnpackDeviceTable table = {UNPACK_DEVICE_TABLE_VERSION,
                                          static_cast<int>(KernelId::kCount),
                                          error,
                                          open_device,
                                          close_device,
                                          info,
                                          out_of_memory,
                                          memory_use,
                                          allocate,
                                          release,
                                          zero,
                                          move,
                                          move,
                                          move,
                                          nothing,
                                          allocate,
                                          fill_parts,
                                          nothing,
                                          nothing,
                                          counted<gemm>,
                                          counted<scaled_gemm>,
                                          counted<few_rows>,
                                          pair_sums_fit,
                                          counted<pair_sums>,
                                          launch};
  return &table;
}

}  // namespace unpack::backend::cuda
