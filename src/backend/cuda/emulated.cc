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

namespace unpack::backend::cuda {

namespace {

thread_local std::string last_error;

const char* error() { return last_error.c_str(); }

int fail(const std::string& text) {
  last_error = text;
  return 1;
}

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
  out->tensor_work = 0;  // all products that can be split are, so that tests see them
  out->tile_bytes = std::int64_t{1} << 15;  // and small prompts take several tiles
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
std::vector<float> seen_factor(UnpackFactors factors, const void* from, std::int64_t offset,
                               std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::int64_t at = offset + i / cols * ld + i % cols;
    out[i] = factors == UNPACK_FACTORS_BF16
                 ? base::bf16_value(static_cast<const std::uint16_t*>(from)[at])
                 : base::float_of_bits(base::bits_of_float(static_cast<const float*>(from)[at]) &
                                       ~kBelowTf32);
  }
  return out;
}

int gemm(void*, UnpackFactors factors, const UnpackGemm* g) {
  try {
    const bool turned = g->b_transposed != 0;
    for (std::int64_t b = 0; b < g->batch; ++b) {
      float* c = g->c + b * g->stride_c;
      if (factors == UNPACK_FACTORS_SINGLE) {
        sgemm(turned, g->m, g->n, g->k, static_cast<const float*>(g->a) + b * g->stride_a, g->lda,
              static_cast<const float*>(g->b) + b * g->stride_b, g->ldb, g->accumulate != 0, c,
              g->ldc);
        continue;
      }
      const std::int64_t b_cols = turned ? g->k : g->n;
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

template <typename Kernel>
int run(const void* parameters, std::size_t bytes, std::int64_t count) {
  if (bytes != sizeof(Kernel)) return fail("a kernel's parameters have another size");
  Kernel kernel;
  std::memcpy(&kernel, parameters, sizeof kernel);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (KernelTraits<Kernel>::kThreads == 0) {
      kernel(i);
    } else {
      HostGroup group;
      kernel(group, i);
    }
  }
  return 0;
}

int launch(void*, int id, const void* parameters, std::size_t bytes, std::int64_t count) {
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

}  // namespace

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
                                          gemm,
                                          launch};
  return &table;
}

}  // namespace unpack::backend::cuda
