// Direction `read` on a device: what heads and neurons read, and sums over the edges they make.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// Sources at once: more compute more pairs s > q for nothing.
constexpr Index kSourcesAtOnce = 64;
// Values of every writer are kept for the search of paths while all layers' take less than this.
constexpr double kKeptValues = 1LL << 30;

template <typename T>
std::vector<T> fetched(Device& device, const void* from, std::size_t count) {
  std::vector<T> out(count);
  device.to_host(out.data(), from, count * sizeof(T));
  return out;
}

Index branch_index(Branch branch) { return branch == Branch::K ? 0 : branch == Branch::Q ? 1 : 2; }

// Doubles on the device, all 0.
class Doubles {
 public:
  Doubles(Device& device, Index count)
      : device_(device), count_(count), memory_(device.zeros(2 * std::max<Index>(count, 1))) {}
  double* get() const { return static_cast<double*>(memory_.raw()); }
  void to(std::vector<double>& out) const { out = fetched<double>(device_, get(), count_); }

 private:
  Device& device_;
  std::size_t count_;
  Array memory_;
};

}  // namespace

ReadOps::HeadReads CudaBackend::head_reads(const AttentionView& view, const AttentionSums& sums,
                                           const Options& options,
                                           std::span<const double> directions) {
  const auto layer = on_device_.layer(view.layer);
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              group = config_.group_size(), d = config_.d_model, length = view.length,
              pairs = tri(length);
  const bool centered = options.scores == Scores::centered;
  HeadReads reads;
  const auto used =
      std::find_if(directions.rbegin(), directions.rend(), [](double x) { return x != 0; });
  reads.last = ((directions.rend() - used + heads * e - 1) / (heads * e)) - 1;
  reads.value = device_->upload_floats(directions);
  reads.key_coef = device_->floats(heads * pairs);
  std::vector<int> all(length);
  for (std::size_t q = 0; q < all.size(); ++q) all[q] = q;
  const Rows rows = rows_of(all);
  Array credit = device_->floats(heads * pairs), query_coef = device_->floats(heads * pairs);
  device_->launch(
      HeadNumerators{ptr(*view.pattern), ptr(*view.v), ptr(reads.value), rows.queries.get(),
                     rows.begin.get(), ptr(credit), pairs, rows.count, heads, group, groups, e},
      heads * rows.total);
  const float scale = head_scale(view.layer);
  device_->launch(ReadShares{ptr(credit), ptr(sums.k_sum), ptr(sums.k_abs), ptr(sums.q_sum),
                             ptr(sums.q_abs), ptr(reads.key_coef), ptr(query_coef), pairs, length,
                             config_.layer(view.layer).window, options.beta, options.floor,
                             options.weights[0], options.weights[1], scale,
                             centered && options.keys == Keys::spread ? 1 : 0, centered ? 1 : 0},
                  heads * length);
  device_->launch(ScaleAll{ptr(reads.value), static_cast<float>(options.weights[2])},
                  reads.value.size());
  // Queries: the keys they met, back before rotary and the norm.
  reads.query = device_->floats(length * heads * e);
  device_->launch(FoldSources{ptr(query_coef), ptr(*view.k), rows.queries.get(), rows.begin.get(),
                              ptr(reads.query), length, heads, group, groups, e},
                  length * heads);
  PullBack pull = pull_back(Side::query, view, *layer);
  if (pull.changes()) {
    pull.from = ptr(reads.query);
    pull.from_a = heads * e;
    pull.position_a = 1;
    reads.query = pulled_back(pull, reads.query.size());
  }
  // Keys and values: sums over the queries that see them.
  Array keys = device_->floats(length * groups * e), values = device_->floats(length * groups * e);
  device_->launch(FoldQueries{ptr(reads.key_coef), ptr(*view.q), ptr(keys), length, pairs, heads,
                              group, groups, e},
                  length * groups);
  device_->launch(FoldQueries{ptr(*view.pattern), ptr(reads.value), ptr(values), length, pairs,
                              heads, group, groups, e},
                  length * groups);
  pull = pull_back(Side::key, view, *layer);
  if (pull.changes()) {
    pull.from = ptr(keys);
    pull.from_a = groups * e;
    pull.position_a = 1;
    keys = pulled_back(pull, keys.size());
  }
  Array linear = device_->floats(length * d), more = device_->floats(length * d);
  const auto to_host = [&](Array& vectors, float by, std::vector<double>& out) {
    device_->launch(ScaleByRow{ptr(vectors), ptr(*view.dev), 0, 1, d, by}, vectors.size());
    out.resize(vectors.size());
    download(vectors, 0, out);
  };
  multiply_turned(layer->matrix(model::Role::w_v), ptr(values), length, ptr(linear));
  multiply_turned(layer->matrix(model::Role::w_q), ptr(reads.query), length, ptr(more));
  add(more, linear, linear.size(), 1.0);
  to_host(linear, 1.0F, reads.linear);
  multiply_turned(layer->matrix(model::Role::w_k), ptr(keys), length, ptr(more));
  to_host(more, scale, reads.keyed);
  return reads;
}

ReadOps::NeuronCredit CudaBackend::neuron_credit(const Array& own, Index rows, const Array* pre,
                                                 const MlpSums* sums, double beta, double weight) {
  NeuronCredit out;
  out.coef = device_->floats(own.size());
  const Doubles all(*device_, rows * 3);
  device_->launch(
      ReadNeurons{ptr(own), sums != nullptr ? ptr(sums->sum) : nullptr,
                  sums != nullptr ? ptr(sums->abs) : nullptr, pre != nullptr ? ptr(*pre) : nullptr,
                  ptr(out.coef), all.get(), own.size() / rows, beta, weight},
      rows);
  std::vector<double> values;
  all.to(values);
  for (std::size_t i = 0; i < values.size(); i += 3) {
    out.credit.push_back(values[i]);
    out.passed += values[i + 1];
    out.doubt += values[i + 2];
  }
  return out;
}

Array CudaBackend::key_medians(const AttentionView& view, const AttentionSums& sums) {
  const Index heads = config_.n_heads, cl = view.visible, length = view.length;
  Array out = device_->floats(heads * length * cl);
  ColumnMedians medians{};
  medians.out = ptr(out);
  medians.length = length;
  medians.pairs = tri(length);
  medians.window = config_.layer(view.layer).window;
  if (!sums.k_scores.empty()) {
    medians.table = ptr(sums.k_scores);
    medians.tile.heads = heads;
    medians.tile.visible = cl;
    device_->launch(medians, out.size());
    return out;
  }
  score_tiles(Side::key, view, [&](const Tile& tile) {
    const Index columns = tile.nq * tile.heads * cl;
    device_->launch(TileMoments{tile, nullptr, nullptr, length, 1}, columns);
    medians.tile = tile;
    device_->launch(medians, columns);
  });
  return out;
}

void CudaBackend::offset_fold(const AttentionView& view, const HeadReads& reads,
                              const Array& offsets, std::vector<double>& out) {
  Array sums = device_->zeros(Index{view.length} * view.visible);
  device_->launch(CenteredKeys{ptr(reads.key_coef), ptr(offsets), ptr(sums), view.length,
                               tri(view.length), config_.n_heads, view.visible},
                  sums.size());
  out.resize(sums.size());
  download(sums, 0, out);
  for (double& x : out) x = -x;
}

// Edges
// ------------------------------------------------------------------------------------------------

// Values of every writer at some positions, before the norm's deviation, [positions, Cl, G, E].
Array CudaBackend::writer_values(const AttentionView& view, const Operand& w, Index first,
                                 Index positions) {
  const Index d = config_.d_model, cl = view.visible, stride = view.n_writers * d;
  Array out = device_->floats(positions * cl * w.out);
  device_->gemm({w.turned ? 1 : 0, 0, cl, w.out, d, ptr(*view.writers) + first * stride, d, stride,
                 w.data, w.ld(), 0, ptr(out), w.out, cl * w.out, positions});
  return out;
}

void CudaBackend::keep_for_edges(const AttentionView& view, HeadReads& reads) {
  const auto layer = on_device_.layer(view.layer);
  const Index heads = config_.n_heads, e = config_.d_head, d = config_.d_model, cl = view.visible,
              length = view.length, stride = view.n_writers * d;
  const Operand w = operand(layer->matrix(model::Role::w_q));
  reads.values = {};
  reads.query_edges = device_->floats(length * heads * cl);
  const Index at_once = positions_at_once(length, heads * d);
  Array vectors = device_->floats(at_once * heads * d);
  for (Index q0 = 0; q0 < length; q0 += at_once) {
    const Index n = std::min(at_once, length - q0);
    heads_to_model(w, config_.n_heads, ptr(reads.query) + q0 * heads * e, n, ptr(vectors));
    device_->gemm({1, 0, heads, cl, d, ptr(vectors), d, heads * d, ptr(*view.writers) + q0 * stride,
                   d, stride, ptr(reads.query_edges) + q0 * heads * cl, cl, heads * cl, n});
  }
  const double values =
      0.5 * config_.n_layers * length * view.n_writers * config_.n_kv_heads * e * sizeof(float);
  if (values <= kKeptValues)
    reads.values = writer_values(view, operand(layer->matrix(model::Role::w_v)), 0, length);
}

void CudaBackend::edge_rows(const AttentionView& view, const HeadReads& reads,
                            const KeyOffsets& offsets, const EdgeUse& use) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              cl = view.visible, pitch = (cl + 3) / 4 * 4, end = reads.last + 1;
  if (end == 0) return;
  // Only where it is needed: a layer may have to go up for it.
  std::shared_ptr<const DeviceRoles> layer;
  if (offsets.scores.empty() || reads.values.empty()) layer = on_device_.layer(view.layer);
  EdgeRows rows{};
  rows.ns = rows.nq = end;
  rows.pitch = pitch;
  rows.visible = cl;
  rows.heads = heads;
  rows.length = view.length;
  rows.pairs = tri(view.length);
  rows.dev = ptr(*view.dev);
  EdgeRows own = rows, keys = rows, values = rows;
  own.own = 1;
  own.tile = ptr(reads.query_edges);
  own.pitch = cl;
  own.scale = 1.0F;
  use(Branch::Q, own);

  keys.coef = ptr(reads.key_coef);
  keys.scale = head_scale(view.layer);
  values.coef = ptr(*view.pattern);
  values.scale = 1.0F;
  if (!offsets.scores.empty()) {
    keys.table = ptr(offsets.scores);
    keys.offset = maybe(offsets.kept);
    use(Branch::K, keys);
  } else {
    keys.offset = maybe(offsets.raw);
  }
  const Index at_once =
      std::clamp<Index>(tile_bytes_ / (4 * heads * pitch * end), 1, std::min(end, kSourcesAtOnce));
  Array tile = device_->floats(at_once * end * heads * pitch);
  const auto products = [&](Branch branch, EdgeRows& part, const Array& from,
                            const float* projected) {
    part.tile = ptr(tile);
    for (Index h = 0; h < heads; ++h) {
      device_->gemm({1, 0, part.nq, cl, e, ptr(from) + (part.q0 * heads + h) * e, heads * e, 0,
                     projected + h / config_.group_size() * e, groups * e, cl * groups * e,
                     ptr(tile) + h * pitch, heads * pitch, part.nq * heads * pitch, part.ns});
    }
    use(branch, part);
  };
  Projection way;
  if (keys.table == nullptr) {
    way = projection(Side::key, view, *layer);
    way.low_rank = false;  // whose products of weights would be made again for every block
  }
  for (Index s0 = 0; s0 < end; s0 += at_once) {
    for (EdgeRows* part : {&keys, &values}) {
      part->s0 = part->q0 = s0;
      part->ns = std::min(at_once, end - s0);
      part->nq = end - s0;
    }
    if (keys.table == nullptr) {
      const Array projected = project(Side::key, view, *layer, way, s0, keys.ns);
      products(Branch::K, keys, *view.q, ptr(projected));
    }
    Array made;
    if (reads.values.empty())
      made = writer_values(view, operand(layer->matrix(model::Role::w_v)), s0, values.ns);
    products(Branch::V, values, reads.value,
             made.empty() ? ptr(reads.values) + s0 * cl * groups * e : ptr(made));
  }
}

ReadOps::EdgesFrom CudaBackend::edges_from(const AttentionView& view, const HeadReads& reads,
                                           const KeyOffsets& offsets, int head, int query) {
  const Index size = Index{view.length} * view.visible;
  Array out = device_->zeros(3 * size);
  edge_rows(view, reads, offsets, [&](Branch branch, const EdgeRows& rows) {
    device_->launch(cuda::EdgesFrom{rows, head, query, ptr(out) + branch_index(branch) * size},
                    rows.ns * rows.visible);
  });
  const std::vector<float> all = device_->download(out);
  EdgesFrom from;
  const auto part = [&](int branch) {
    return std::vector<double>(all.begin() + branch * size, all.begin() + (branch + 1) * size);
  };
  from.k = part(0);
  from.q = part(1);
  from.v = part(2);
  return from;
}

std::vector<ReadOps::EdgesInto> CudaBackend::edges_into(std::span<const LayerReads> layers,
                                                        int writer, int source) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              d = config_.d_model;
  std::vector<EdgesInto> out(layers.size());
  std::vector<std::size_t> begin;
  std::size_t total = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    out[i].queries = std::max(0, layers[i].reads->last + 1 - source);
    begin.push_back(total);
    if (out[i].queries > 0) total += heads * (2 * out[i].queries + 1);
  }
  if (total == 0) return out;
  const Array memory = device_->floats(total);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (out[i].queries == 0) continue;
    const auto& [view, reads, offsets] = layers[i];
    std::shared_ptr<const DeviceRoles> layer;
    if (offsets->scores.empty() || reads->values.empty()) layer = on_device_.layer(view.layer);
    // One writer at one position, as project and writer_values see several.
    AttentionView one = view;
    Array vector = slice(*view.writers, (Index{source} * view.n_writers + writer) * d, d);
    one.writers = &vector;
    one.visible = one.n_writers = 1;
    Array key, value;
    if (offsets->scores.empty()) {
      const Operand w = operand(layer->matrix(model::Role::w_k));
      key = device_->floats(w.out);
      device_->gemm({w.turned ? 1 : 0, 0, 1, w.out, d, ptr(vector), d, 0, w.data, w.ld(), 0,
                     ptr(key), w.out, 0, 1});
      finish_projected(Side::key, view, *layer, source, 1, 1, key);
    }
    if (reads->values.empty())
      value = writer_values(one, operand(layer->matrix(model::Role::w_v)), 0, 1);
    EdgesIn in{};
    in.q = ptr(*view.q);
    in.key = maybe(key);
    in.table = maybe(offsets->scores);
    in.key_coef = ptr(reads->key_coef);
    in.offset = maybe(key.empty() ? offsets->kept : offsets->raw);
    in.directions = ptr(reads->value);
    in.value = value.empty()
                   ? ptr(reads->values) + (Index{source} * view.visible + writer) * groups * e
                   : ptr(value);
    in.pattern = ptr(*view.pattern);
    in.query_edges = ptr(reads->query_edges);
    in.dev = ptr(*view.dev);
    in.scale = head_scale(view.layer);
    in.out = ptr(memory) + begin[i];
    in.writer = writer;
    in.source = source;
    in.n = out[i].queries;
    in.heads = heads;
    in.group = config_.group_size();
    in.e = e;
    in.visible = view.visible;
    in.length = view.length;
    in.pairs = tri(view.length);
    device_->launch(in, heads * in.n);
  }
  const std::vector<float> all = device_->download(memory);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (out[i].queries == 0) continue;
    const std::ptrdiff_t n = heads * out[i].queries;
    const auto from = all.begin() + begin[i];
    out[i].k.assign(from, from + n);
    out[i].v.assign(from + n, from + 2 * n);
    out[i].q.assign(from + 2 * n, from + 2 * n + heads);
  }
  return out;
}

bool CudaBackend::pass_ways(const AttentionView& view, const HeadReads& reads,
                            const KeyOffsets& offsets, const WaysAbove& above, WaysBelow& below) {
  const Index cl = view.visible, length = view.length, heads = config_.n_heads,
              branch_size = above.slots * heads * length, kinds = 1 + 2 * above.slots,
              ends = above.terminals;
  std::vector<double> given = above.bound;
  given.insert(given.end(), above.mass.begin(), above.mass.end());
  const auto bound = device_->upload(std::span<const double>(given));
  const double* mass = bound.get() + above.bound.size();
  const Doubles all(*device_, kinds * length * cl + 4 * length * ends);
  double* ended = all.get() + kinds * length * cl;
  edge_rows(view, reads, offsets, [&](Branch branch, const EdgeRows& rows) {
    // As many sources at a time as there is room for the heads' parts.
    const Index each = heads * (kinds * cl + 4 * ends) * 2;
    const Index at_once = positions_at_once(rows.ns, each);
    const Doubles parts(*device_, at_once * each / 2);
    for (Index done = 0; done < rows.ns; done += at_once) {
      const EdgeRows part = rows.sources(done, std::min(at_once, rows.ns - done));
      double* end_parts = parts.get() + kinds * part.ns * heads * cl;
      device_->launch(HeadWays{part,
                               bound.get() + branch_index(branch) * branch_size,
                               mass + branch_index(branch) * branch_size,
                               above.slots,
                               ends,
                               {above.end_slot[0], above.end_slot[1]},
                               parts.get(),
                               end_parts},
                      part.ns * heads * cl);
      device_->launch(AddWays{parts.get(), all.get(), part.s0, part.ns, heads, cl, length, 1},
                      kinds * part.ns * cl);
      device_->launch(AddWays{end_parts, ended, part.s0, part.ns, heads, ends, length, 0},
                      4 * part.ns * ends);
    }
  });
  std::vector<double> out;
  all.to(out);
  const auto take = [&](Index from, Index count, std::vector<double>& to) {
    to.insert(to.end(), out.begin() + from, out.begin() + from + count);
  };
  take(0, length * cl, below.sum);
  for (Index slot = 0; slot < above.slots; ++slot) {
    take((1 + 2 * slot) * length * cl, length * cl, below.bound);
    take((2 + 2 * slot) * length * cl, length * cl, below.mass);
  }
  for (Index sign = 0; sign < 2; ++sign) {
    take(kinds * length * cl + 2 * sign * length * ends, length * ends, below.end_bound);
    take(kinds * length * cl + (2 * sign + 1) * length * ends, length * ends, below.end_mass);
  }
  return true;
}

bool CudaBackend::edge_masses(const AttentionView& view, const HeadReads& reads,
                              const KeyOffsets& offsets, std::span<const double> below,
                              std::vector<double>& out) {
  const auto given = device_->upload(below);
  const Doubles sums(*device_, Index{config_.n_heads} * view.length);
  edge_rows(view, reads, offsets, [&](Branch, const EdgeRows& rows) {
    device_->launch(EdgeMasses{rows, given.get(), view.n_writers, sums.get()},
                    rows.heads * (rows.own ? rows.ns : rows.nq));
  });
  sums.to(out);
  return true;
}

bool CudaBackend::edge_totals(const AttentionView& view, const HeadReads& reads,
                              const KeyOffsets& offsets, bool positions, std::vector<double>& out) {
  const Index size = Index{config_.n_heads} * view.visible;
  const Doubles sums(*device_, (positions ? view.length : 1) * 3 * size);
  edge_rows(view, reads, offsets, [&](Branch branch, const EdgeRows& rows) {
    double* to = sums.get() + branch_index(branch) * size;
    if (positions) {
      device_->launch(EdgeTotals{rows, to + rows.s0 * 3 * size, 3 * size}, rows.ns * size);
      return;
    }
    const Index at_once = positions_at_once(rows.ns, size * 2);
    const Doubles parts(*device_, at_once * size);
    for (Index done = 0; done < rows.ns; done += at_once) {
      const EdgeRows part = rows.sources(done, std::min(at_once, rows.ns - done));
      device_->launch(EdgeTotals{part, parts.get(), size}, part.ns * size);
      device_->launch(AddRows{parts.get(), to, part.ns, size}, size);
    }
  });
  sums.to(out);
  return true;
}

}  // namespace unpack::backend::cuda
