// Attention in one go: the logits of a block of queries stay in cache from product to product.
#include <algorithm>
#include <vector>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/kernels/forward.h"
#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend {

template <typename T>
void HostForward<T>::attention(int index, const Array& q, const Array& k, const Array& v,
                               std::span<const Segment> segments, std::span<const Index> key_begin,
                               Array& pattern, Array& z) {
  const LayerConfig& shape = config_.layer(index);
  const auto w = layer(index);
  const int heads = config_.n_heads;
  const Index e = config_.d_head;
  const Index q_row = heads * e;
  const Index kv_row = config_.n_kv_heads * e;
  const T scale = shape.attention_scale;
  const T cap = shape.attention_cap;
  // Rows with a sink, which few models have, are left to the kernel that all devices run.
  const auto& sinks = w->vector(model::Role::sinks);
  std::vector<Index> pattern_begin(segments.size() + 1, 0);
  for (std::size_t i = 0; i < segments.size(); ++i)
    pattern_begin[i + 1] = pattern_begin[i] + heads * tri(segments[i].length);
  pool_.parallel_for(segments.size() * heads, [&](Index task) {
    const std::size_t part = task / heads;
    const auto h = task % heads;
    const Segment& segment = segments[part];
    const Index keys = segment.past + segment.length;
    const Index g = h / config_.group_size();
    const T* qh = ptr(q) + segment.begin * q_row + h * e;
    const T* kh = ptr(k) + key_begin[part] * kv_row + g * e;
    const T* vh = ptr(v) + key_begin[part] * kv_row + g * e;
    T* zh = ptr(z) + segment.begin * q_row + h * e;
    // A block of queries at a time keeps the logits of long prompts in cache.
    constexpr Index kQueries = 64;
    std::vector<T> logits(std::min<Index>(kQueries, segment.length) * keys);
    for (Index begin = 0; begin < segment.length; begin += kQueries) {
      const Index n = std::min<Index>(kQueries, segment.length - begin);
      const Index reach = segment.past + begin + n;
      gemm(true, n, reach, e, qh + begin * q_row, q_row, kh, kv_row, false, logits.data(), keys);
      for (Index i = 0; i < n; ++i) {
        T* row = logits.data() + i * keys;
        const Index seen = segment.past + begin + i + 1;
        if (!sinks.empty()) {
          kernels::CausalSoftmax<T> whole{};
          whole.logits = row;
          whole.queries = 1;
          whole.first = seen - 1;
          whole.reach = reach;
          whole.scale = scale;
          whole.window = shape.window;
          whole.cap = cap;
          whole.sinks = sinks.data() + h;
          kernels::HostGroup alone;
          whole(alone, 0);
        } else {
          const Index from = shape.first_source(seen - 1);
          for (Index s = from; cap > 0 && s < seen; ++s)
            row[s] = base::soft_cap(row[s] * scale, cap);
          std::fill(row, row + from, T(0));
          softmax_row(row + from, seen - from, cap > 0 ? T(1) : scale);
          std::fill(row + seen, row + reach, T(0));
        }
        if (!pattern.empty())
          std::copy_n(
              row, seen,
              ptr(pattern) + pattern_begin[part] + h * tri(segment.length) + tri(begin + i));
      }
      gemm(false, n, e, reach, logits.data(), keys, vh, kv_row, false, zh + begin * q_row, q_row);
    }
  });
}

template class HostForward<float>;

}  // namespace unpack::backend
