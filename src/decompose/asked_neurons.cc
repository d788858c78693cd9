#include "decompose/asked_neurons.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/mlp_readers.h"
#include "base/index.h"

namespace unpack::decompose {

namespace {

constexpr std::size_t kKeptPositions = 2;
constexpr Index kColumns = 256;  // neurons of a task

struct Totals {
  std::vector<double> sum, abs;  // [entries]
  std::vector<double> square;    // [blocks, Cl]
};

// Over the writers in their order, so that the result does not depend on who does what.
template <typename T>
void add_up(const T* scores, Index writers, Index entries, Index block, Totals& to) {
  const Index begin = block * kColumns, end = std::min(entries, begin + kColumns);
  for (Index j = 0; j < writers; ++j) {
    const T* row = scores + j * entries;
    double square = 0;
    for (Index i = begin; i < end; ++i) {
      const double x = row[i];
      to.sum[i] += x;
      to.abs[i] += std::fabs(x);
      square += x * x;
    }
    to.square[block * writers + j] = square;
  }
}

backend::Array array_of(backend::Backend& backend, const std::vector<double>& values) {
  backend::Array out = backend.zeros(std::ssize(values));
  backend.upload(out, 0, values);
  return out;
}

}  // namespace

backend::MlpSums AskedNeurons::at(backend::Backend& backend, const backend::MlpView& view,
                                  backend::MlpSide side, int query, bool scores) {
  std::list<Kept>& kept = kept_[backend::neuron_side(side)];
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(kept.begin(), kept.end(), [&](const Kept& x) { return x.query == query; });
    if (found != kept.end()) {
      kept.splice(kept.begin(), kept, found);
      return kept.front().sums;
    }
  }
  const Index entries = backend.config().layer(view.layer).entries();
  const Index writers = view.visible, blocks = (entries + kColumns - 1) / kColumns;
  backend::Array all = backend.zeros(writers * entries);
  backend.mlp_scores(view, side, Scores::raw, query, all);
  const auto host = backend.host(all);
  Totals totals{std::vector<double>(entries, 0.0), std::vector<double>(entries, 0.0),
                std::vector<double>(blocks * writers, 0.0)};
  backend.parallel_for(blocks, [&](Index block) {
    if (backend.is_double()) {
      add_up(static_cast<const double*>(host.get()), writers, entries, block, totals);
    } else {
      add_up(static_cast<const float*>(host.get()), writers, entries, block, totals);
    }
  });
  std::vector<double> l2(writers, 0.0);
  for (std::size_t i = 0; i < totals.square.size(); ++i) l2[i % l2.size()] += totals.square[i];
  for (double& x : l2) x = std::sqrt(x);
  backend::MlpSums made;
  made.sum = array_of(backend, totals.sum);
  made.abs = array_of(backend, totals.abs);
  made.l2 = array_of(backend, l2);
  if (scores) made.last = all;
  const std::lock_guard lock(mutex_);
  if (kept.size() >= kKeptPositions) kept.pop_back();
  kept.push_front({query, made});
  return made;
}

std::size_t AskedNeurons::numbers() {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const std::list<Kept>& side : kept_) {
    for (const auto& [query, sums] : side)
      all += sums.sum.size() + sums.abs.size() + sums.l2.size() + sums.last.size();
  }
  return all;
}

}  // namespace unpack::decompose
