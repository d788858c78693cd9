// Whole steps on the shape of GPT-2 small with random weights. UNPACK_BENCH_THREADS sets the
// threads (default 2).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "engine/state.h"
#include "forward/forward.h"
#include "unpack/prepared.h"

namespace unpack {
namespace {

int threads() {
  const char* set = std::getenv("UNPACK_BENCH_THREADS");
  return set ? std::atoi(set) : 2;
}

const Model& model(bool products) {
  static std::map<bool, Model> kept;
  const auto found = kept.find(products);
  if (found != kept.end()) return found->second;
  LoadOptions options;
  options.device = "cpu";
  options.threads = threads();
  options.weight_products = products;
  return kept
      .emplace(products,
               products ? model(false).with(options) : Model::random("gpt2-small", 1, options))
      .first->second;
}

std::vector<TokenId> prompt(std::int64_t tokens) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<TokenId>((i * 7919 + 13) % 50000));
  return ids;
}

Question question(std::size_t paths) {
  Question q;
  q.paths.top = paths;
  return q;
}

void forward_pass(benchmark::State& state) {
  backend::Backend& backend = *engine::state_of(model(false))->backend;
  const std::vector<TokenId> ids = prompt(state.range(0));
  forward::ForwardOptions plain;
  plain.keep = false;
  std::vector<double> logits;
  for (auto _ : state) {
    const forward::ForwardPass pass = forward::forward(backend, {ids}, plain);
    const std::vector<std::int64_t> last = {state.range(0) - 1};
    backend.logits(pass.x_final, last, logits);
  }
}
BENCHMARK(forward_pass)
    ->ArgName("tokens")
    ->Arg(16)
    ->Arg(64)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void one_shot(benchmark::State& state) {
  const Model& m = model(state.range(1) != 0);
  const std::vector<TokenId> ids = prompt(state.range(0));
  (void)m.prepare(ids).trace(question(20));
  for (auto _ : state) (void)m.prepare(ids).trace(question(20));
}
BENCHMARK(one_shot)
    ->ArgNames({"tokens", "products"})
    ->Args({16, 0})
    ->Args({16, 1})
    ->Args({64, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Questions on a prepared prompt of 16 tokens.
void ask(benchmark::State& state, const std::function<Question(int)>& make) {
  const Prepared prepared = model(false).prepare(prompt(16));
  (void)prepared.trace(question(20));
  int turn = 0;
  for (auto _ : state) (void)prepared.trace(make(turn++));
}

void another_target(benchmark::State& state) {
  ask(state, [](int turn) {
    Question q = question(20);
    q.target.ids = {turn % 50000};
    return q;
  });
}
BENCHMARK(another_target)->UseRealTime()->Unit(benchmark::kMillisecond);

void another_beta(benchmark::State& state) {
  ask(state, [](int turn) {
    Question q = question(20);
    q.options.beta = 0.1 + 1e-4 * turn;
    return q;
  });
}
BENCHMARK(another_beta)->UseRealTime()->Unit(benchmark::kMillisecond);

void rerooting(benchmark::State& state) {
  ask(state, [](int turn) {
    Question q = question(20);
    q.root = fmt::format("A{}.H{}@{}", 6 + turn % 6, turn % 12, 15 - turn % 5);
    return q;
  });
}
BENCHMARK(rerooting)->UseRealTime()->Unit(benchmark::kMillisecond);

void paths(benchmark::State& state) {
  ask(state, [&](int) { return question(static_cast<std::size_t>(state.range(0))); });
}
BENCHMARK(paths)->ArgName("paths")->Arg(20)->Arg(1000)->Arg(10000)->UseRealTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace unpack
