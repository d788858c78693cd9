// The inner loops, for every instruction set that this processor has, and the matrix products in
// the shapes that a trace of GPT-2 small asks for. Loops that multiply say how much they reach of
// the multiplications and additions that registers of their instruction set allow.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
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

// Multiplications and additions in a second that nothing but registers takes part in, of one
// thread.
constexpr int kRegisters = 12;

template <typename Vector>
[[gnu::always_inline]] inline float multiply_add(std::int64_t steps) {
  Vector sums[kRegisters] = {}, factor = {}, more = {};
#pragma GCC unroll 12
  for (Vector& sum : sums) sum += 1.0F;
  factor += 0.999F;
  more += 0.001F;
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (Vector& sum : sums) {
      sum = sum * factor + more;
      asm("" : "+v"(sum));  // in a register, and each by itself
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < kRegisters; ++i) sums[0] += sums[i];
  return sums[0][0];
}

using Four = float __attribute__((vector_size(16)));
#if defined(__x86_64__)
using Eight = float __attribute__((vector_size(32)));
using Sixteen = float __attribute__((vector_size(64)));
[[gnu::target("avx2,fma")]] void steps_of_eight(std::int64_t steps) {
  benchmark::DoNotOptimize(multiply_add<Eight>(steps));
}
[[gnu::target("avx512f")]] void steps_of_sixteen(std::int64_t steps) {
  benchmark::DoNotOptimize(multiply_add<Sixteen>(steps));
}
#endif
void steps_of_four(std::int64_t steps) { benchmark::DoNotOptimize(multiply_add<Four>(steps)); }

double peak(const std::string& name) {
  auto run = steps_of_four;
  int lanes = 4;
#if defined(__x86_64__)
  if (name == "avx2") run = steps_of_eight, lanes = 8;
  if (name == "avx512") run = steps_of_sixteen, lanes = 16;
#endif
  constexpr std::int64_t kSteps = 1'000'000;
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const std::clock_t begin = std::clock();  // of the processor, as the library's rates are
    run(kSteps);
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    best = std::max(best, 2.0 * lanes * kRegisters * kSteps / took);
  }
  return best;
}

struct Loops {
  const backend::FloatKernels* kernels;
  std::string name;
};

// Against the peak of the moments before and after: other programs slow both.
template <typename Call>
void run(benchmark::State& state, const Loops& loops, double flops, const Call& call) {
  double most = peak(loops.name);
  for (auto _ : state) {
    call();
    benchmark::ClobberMemory();
  }
  most = std::max(most, peak(loops.name));
  rate(state, "FLOP/s", flops);
  state.counters["of_peak"] = benchmark::Counter(
      flops * static_cast<double>(state.iterations()) / most, benchmark::Counter::kIsRate);
}

// Scores of the keys of one head: writers and queries against each other, d_head deep. With what
// the search for paths wants of them, and with the moments of centred scores.
enum class Wanted { sums, reach, moments };
void pair_sums(benchmark::State& state, const Loops& loops, Wanted wanted) {
  constexpr std::int64_t kWriters = 158, kQueries = 512, kDepth = 64;
  const std::vector<float> a = ramp(kWriters * kDepth), b = ramp(kQueries * kDepth);
  const std::vector<float> weight = ramp(kQueries), mass = ramp(kWriters);
  const std::vector<float> origin = ramp(kWriters * kQueries);
  std::vector<float> first(origin.size()), second(origin.size()), most(kQueries);
  std::vector<double> sum(kQueries), abs(kQueries), reach(kQueries);
  backend::PairProduct<float> call{.rows = kWriters,
                                   .columns = kQueries,
                                   .depth = kDepth,
                                   .a = a.data(),
                                   .lda = kDepth,
                                   .b = b.data(),
                                   .sum = sum.data(),
                                   .abs = abs.data()};
  if (wanted == Wanted::moments) {
    call.weight = weight.data();
    call.origin = origin.data();
    call.first = first.data();
    call.second = second.data();
    call.ld = kQueries;
  }
  if (wanted == Wanted::reach) {
    call.mass = mass.data();
    call.bound = mass.data();
    call.reach = reach.data();
    call.most = most.data();
  }
  run(state, loops, 2.0 * kWriters * kQueries * kDepth, [&] { loops.kernels->pair_sums(call); });
}

void reach_sums(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kWriters = 158, kQueries = 512, kDepth = 64;
  const std::vector<float> a = ramp(kWriters * kDepth), b = ramp(kQueries * kDepth);
  const std::vector<float> mass = ramp(kWriters);
  std::vector<float> most(kQueries);
  std::vector<double> sum(kQueries);
  const backend::ReachProduct call{kWriters, kQueries,    kDepth,      a.data(),   kDepth,
                                   b.data(), mass.data(), mass.data(), sum.data(), most.data()};
  run(state, loops, 2.0 * kWriters * kQueries * kDepth, [&] { loops.kernels->reach_sums(call); });
}

void edge_sums(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kWriters = 158, kQueries = 512, kDepth = 64;
  const std::vector<float> a = ramp(kWriters * kDepth), b = ramp(kQueries * kDepth);
  const std::vector<float> factor = ramp(kQueries), bound = ramp(kQueries);
  std::vector<float> most(kWriters);
  std::vector<double> sum(kWriters);
  const backend::EdgeProduct call{.rows = kWriters,
                                  .begin = 0,
                                  .end = kQueries,
                                  .depth = kDepth,
                                  .a = a.data(),
                                  .lda = kDepth,
                                  .b = b.data(),
                                  .factor = factor.data(),
                                  .bound = bound.data(),
                                  .offset = nullptr,
                                  .ld = 0,
                                  .sum = sum.data(),
                                  .most = most.data()};
  run(state, loops, 2.0 * kWriters * kQueries * kDepth, [&] { loops.kernels->edge_sums(call); });
}

// Heads at 256 positions against a panel of a product of weights.
void head_sums(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kRows = 256, kColumns = 256, kDepth = 64;
  const std::vector<float> a = ramp(kRows * kDepth), b = ramp(kColumns * kDepth);
  std::vector<float> sum(kRows * kColumns), abs(kRows * kColumns);
  std::vector<double> square(kRows);
  const backend::HeadProduct<float> call{
      kRows,      kColumns,   kDepth,   a.data(),      kDepth, {b.data(), 32, kDepth * 32},
      sum.data(), abs.data(), kColumns, square.data(), 1};
  run(state, loops, 2.0 * kRows * kColumns * kDepth, [&] { loops.kernels->head_sums(call); });
}

// Writers against a panel of neurons.
void writer_sums(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kRows = 158, kColumns = 256, kDepth = 768;
  const std::vector<float> a = ramp(kRows * kDepth), b = ramp(kColumns * kDepth);
  std::vector<double> sum(kColumns), abs(kColumns), square(kRows);
  const backend::WriterProduct call{
      kRows,      kColumns,   kDepth,
      a.data(),   kDepth,     backend::InPanels<float>::packed(b.data(), kDepth),
      sum.data(), abs.data(), square.data()};
  run(state, loops, 2.0 * kRows * kColumns * kDepth, [&] { loops.kernels->writer_sums(call); });
}

void packed_product(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kRows = 256, kColumns = 256, kDepth = 768;
  const std::vector<float> a = ramp(kRows * kDepth), b = ramp(kColumns * kDepth);
  std::vector<float> c(kRows * kColumns);
  const backend::PackedProduct<float> call{
      kRows,     kColumns, kDepth,
      a.data(),  kDepth,   backend::InPanels<float>::packed(b.data(), kDepth),
      false,     c.data(), 32,
      kRows * 32};
  run(state, loops, 2.0 * kRows * kColumns * kDepth, [&] { loops.kernels->packed_product(call); });
}

// A few rows against weights as they lie, turned.
void turned_product(benchmark::State& state, const Loops& loops) {
  constexpr std::int64_t kRows = 16, kColumns = 72, kDepth = 768;
  const std::vector<float> a = ramp(kRows * kDepth), b = ramp(kColumns * kDepth);
  std::vector<float> c(kRows * kColumns);
  const backend::TurnedProduct call{kRows,    kColumns, kDepth, a.data(), kDepth,
                                    b.data(), kDepth,   false,  c.data(), kColumns};
  run(state, loops, 2.0 * kRows * kColumns * kDepth, [&] { loops.kernels->turned_product(call); });
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
    const Loops loops{kernels, name};
    const auto add = [&name = name, &loops](const char* what, auto loop, auto... more) {
      benchmark::RegisterBenchmark((what + ("/" + name)).c_str(), loop, loops, more...);
    };
    add("pair_sums", pair_sums, Wanted::sums);
    add("pair_sums_with_reach", pair_sums, Wanted::reach);
    add("pair_sums_with_moments", pair_sums, Wanted::moments);
    add("reach_sums", reach_sums);
    add("edge_sums", edge_sums);
    add("head_sums", head_sums);
    add("writer_sums", writer_sums);
    add("packed_product", packed_product);
    add("turned_product", turned_product);
  }
  return true;
}();

}  // namespace
}  // namespace unpack
