#include "decompose/host_math.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"

namespace unpack::decompose {

std::vector<double> fetch(backend::Backend& backend, const backend::Array& array) {
  std::vector<double> out(array.size());
  if (!out.empty()) backend.download(array, 0, out);
  return out;
}

std::vector<double> fetch(const model::WeightView& w) {
  if (!w) return {};
  std::vector<double> out(w.in * w.out);
  model::read_rows(w, 0, w.in, out.data());
  return out;
}

double dot(std::span<const double> x, std::span<const double> y) {
  // Eight running sums: the compiler may not reorder one.
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  const std::size_t n = x.size();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) sums[j] += x[i + j] * y[i + j];
  }
  double sum = 0;
  for (; i < n; ++i) sum += x[i] * y[i];
  for (const double s : sums) sum += s;
  return sum;
}

void linear_back(backend::Backend& backend, const model::WeightView& w, std::span<const double> g_y,
                 std::span<double> g_x, Index rows) {
  const std::size_t out = w.out;
  std::vector<Index> used;
  for (Index r = 0; r < rows; ++r) {
    const auto row = g_y.subspan(r * out, out);
    if (std::any_of(row.begin(), row.end(), [](double x) { return x != 0; })) used.push_back(r);
  }
  if (used.empty()) return;
  constexpr Index kBlock = 32;
  backend.parallel_for((w.in + kBlock - 1) / kBlock, [&](Index block) {
    const Index begin = block * kBlock;
    const Index n = std::min(kBlock, w.in - begin);
    std::vector<double> weights(n * out);
    model::read_rows(w, begin, n, weights.data());
    for (const Index r : used) {
      const auto g = g_y.subspan(r * out, out);
      for (Index i = 0; i < n; ++i) {
        g_x[r * w.in + begin + i] += dot(g, std::span(weights).subspan(i * out, out));
      }
    }
  });
}

void linear(const model::WeightView& w, std::span<const double> x, std::span<double> y,
            Index rows) {
  const std::size_t out = w.out;
  std::fill(y.begin(), y.end(), 0.0);
  std::vector<double> weights(out);
  for (Index i = 0; i < w.in; ++i) {
    model::read_rows(w, i, 1, weights.data());
    for (Index r = 0; r < rows; ++r) {
      const double scale = x[r * w.in + i];
      double* to = y.data() + r * out;
      for (std::size_t o = 0; o < out; ++o) to[o] += scale * weights[o];
    }
  }
}

void rotate_back(const Rope& rope, std::span<const double> frequencies, int position,
                 std::span<double> head) {
  const std::size_t half = rope.dims / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double c = rope.amplitude * std::cos(position * frequencies[i]);
    const double s = rope.amplitude * std::sin(position * frequencies[i]);
    backend::kernels::turn_pair(head[i], head[i + half], c, -s);
  }
}

}  // namespace unpack::decompose
