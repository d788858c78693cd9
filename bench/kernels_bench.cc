// The inner loops, for every instruction set that this processor has, and the matrix products in
// the shapes that a trace of GPT-2 small asks for.
#include <benchmark/benchmark.h>

#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/host/kernels.h"

namespace unpack {
namespace {

std::vector<float> ramp(std::size_t n) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(i * 7 % 13) / 13 - 0.5F;
  return out;
}

void rate(benchmark::State& state, const char* name, double each) {
  state.counters[name] = benchmark::Counter(each * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

void reduce_writers(benchmark::State& state, const backend::FloatKernels* kernels) {
  constexpr std::int64_t kRows = 160, kColumns = 256;
  const std::vector<float> tile = ramp(kRows * kColumns);
  std::vector<double> sum(kColumns), abs(kColumns), square(kRows);
  for (auto _ : state) {
    kernels->reduce(tile.data(), kRows, kColumns, kColumns, sum.data(), abs.data(), square.data());
    benchmark::DoNotOptimize(sum.data());
  }
  rate(state, "scores/s", kRows * kColumns);
}

void reduce_rows(benchmark::State& state, const backend::FloatKernels* kernels) {
  constexpr std::int64_t kRows = 64, kColumns = 158;
  const std::vector<float> rows = ramp(kRows * kColumns);
  std::vector<float> sums(kRows), abs(kRows);
  std::vector<double> column(kColumns), square(kColumns);
  for (auto _ : state) {
    kernels->reduce_rows(rows.data(), kRows, kColumns, sums.data(), abs.data(), column.data(),
                         square.data());
    benchmark::DoNotOptimize(sums.data());
  }
  rate(state, "scores/s", kRows * kColumns);
}

void gelu(benchmark::State& state, const backend::FloatKernels* kernels) {
  const std::vector<float> in = ramp(3072);
  std::vector<float> out(in.size());
  for (auto _ : state) {
    kernels->gelu_tanh(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    benchmark::DoNotOptimize(out.data());
  }
  rate(state, "values/s", static_cast<double>(in.size()));
}

// Right sides are taken in turn from more memory than the caches hold, as the weights of a model
// are.
void product(benchmark::State& state) {
  const bool transposed = state.range(0) != 0;
  const std::int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  const auto size = static_cast<std::size_t>(n * k);
  const std::size_t count = std::max<std::size_t>(1, (std::size_t{64} << 18) / size);
  const std::vector<float> a = ramp(static_cast<std::size_t>(m * k)), b = ramp(size * count);
  std::vector<float> c(static_cast<std::size_t>(m * n));
  std::size_t turn = 0;
  for (auto _ : state) {
    backend::sgemm(transposed, m, n, k, a.data(), k, b.data() + turn++ % count * size,
                   transposed ? k : n, false, c.data(), n);
    benchmark::DoNotOptimize(c.data());
  }
  rate(state, "FLOP/s", 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(product)
    ->ArgNames({"transposed", "m", "n", "k"})
    ->Args({0, 16, 256, 768})   // a panel of the forward pass
    ->Args({0, 192, 256, 768})  // writers against a panel of neurons
    ->Args({0, 16, 256, 64})    // a head against a weight product
    ->Args({1, 192, 158, 768})  // folded keys and queries against writers
    ->Args({1, 32, 158, 64})    // projected keys
    ->Args({1, 16, 128, 256})   // folding back through a panel
    ->Args({1, 1, 512, 768});   // the head for one position

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [name, kernels] : backend::float_kernels()) {
    benchmark::RegisterBenchmark(("reduce_writers/" + name).c_str(), reduce_writers, kernels);
    benchmark::RegisterBenchmark(("reduce_rows/" + name).c_str(), reduce_rows, kernels);
    benchmark::RegisterBenchmark(("gelu/" + name).c_str(), gelu, kernels);
  }
  return true;
}();

}  // namespace
}  // namespace unpack
