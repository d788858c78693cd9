#include "engine/read_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "credit/safe_denom.h"
#include "decompose/host_math.h"

namespace unpack {

namespace {

// Groups of credit that a node holds, by the direction they came in.
enum Kind { kStart = 0, kLinear = 1, kKeyed = 2 };

// The columns of one head.
WeightView head_of(const WeightView& w, std::int64_t head, std::int64_t e) {
  WeightView out = w;
  const std::int64_t first = w.offset(0, head * e);
  if (w.encoded != nullptr) {
    out.start += first;
  } else {
    out.data += first * static_cast<std::int64_t>(dtype_size(w.dtype));
  }
  out.out = e;
  return out;
}

double floored_inverse(double sum, double abs, double beta, double floor) {
  const double size = std::max({std::fabs(sum), beta * abs, floor});
  return size == 0 ? 0.0 : (sum < 0 ? -1.0 : 1.0) / size;
}

std::size_t triangle(std::size_t q) { return q * (q + 1) / 2; }

}  // namespace

ReadSweep::ReadSweep(const PreparedState& state, const Options& options, const ReadStart& start,
                     bool with_edges, const RunContext& context)
    : state_(state),
      d_(*state.decomposition),
      weights_(*state.model.state()->weights),
      c_(weights_.config),
      o_(options),
      start_(start),
      with_edges_(with_edges),
      context_(context),
      length_(static_cast<std::size_t>(d_.length())),
      width_(static_cast<std::size_t>(c_.d_model)),
      writers_(static_cast<std::size_t>(d_.writers().count())) {
  const double bytes = static_cast<double>(c_.n_layers) * c_.n_heads *
                       static_cast<double>(length_ * width_) * 2 * sizeof(double);
  if (with_edges && bytes > static_cast<double>(context.memory_budget))
    throw InputError(
        fmt::format("paths and roots along the direction of reading would take {:.0f} MiB for this "
                    "prompt, more "
                    "than the {} MiB allowed: ask for --top-paths 0, or for --direction output",
                    bytes / 1048576, context.memory_budget >> 20));
  vectors_ = fetch(d_.backend(), d_.writer_vectors());
  credit_.assign(length_ * writers_, 0.0);
  keyed_ = credit_;
  first_.assign(writers_, 0.0);
  layers_.resize(static_cast<std::size_t>(c_.n_layers));
  const auto p = static_cast<std::size_t>(start_.position);
  if (start_.root) {
    credit_[at(start_.position, start_.root->writer)] = 1.0;
  } else {
    for (std::size_t w = 0; w < writers_; ++w) {
      first_[w] =
          dot(std::span(vectors_).subspan((p * writers_ + w) * width_, width_), start_.direction);
      credit_[at(start_.position, static_cast<int>(w))] = first_[w];
    }
  }
  // Folded reads of the layers above, per position: those that act on a writer alone, and those of
  // keys, whose credit is centred over positions.
  Values linear(length_ * width_, 0.0), keyed = linear;
  const auto take = [&](const Values& from, int first_writer, int end) {
    d_.backend().parallel_for(d_.length(), [&](std::int64_t s) {
      for (int w = first_writer; w < end; ++w)
        credit_[at(static_cast<int>(s), w)] +=
            dot(std::span(vectors_).subspan(at(static_cast<int>(s), w) * width_, width_),
                std::span(from).subspan(static_cast<std::size_t>(s) * width_, width_));
    });
  };
  for (int l = c_.n_layers - 1; l >= 0; --l) {
    context.check();
    const Writers& writers = d_.writers();
    Values below = linear, below_keyed = keyed;
    take(linear, writers.mlp(l), writers.mlp(l) + 1);
    mlp(l, linear, keyed, below);
    const Values& heads_read = c_.block == Block::parallel ? linear : below;
    take(heads_read, writers.head(l, 0), writers.mlp(l));
    const Values before = heads_read;
    attention(l, before, keyed, below, below_keyed);
    linear = std::move(below);
    keyed = std::move(below_keyed);
  }
  take(linear, 0, d_.writers().terminals());
  for (std::size_t i = 0; i < credit_.size(); ++i) credit_[i] += keyed_[i];
}

void ReadSweep::center(Values& rows) const {
  if (c_.norm != Norm::layer) return;
  for (std::size_t r = 0; r < rows.size() / width_; ++r) {
    double mean = 0;
    for (std::size_t i = 0; i < width_; ++i) mean += rows[r * width_ + i];
    mean /= static_cast<double>(width_);
    for (std::size_t i = 0; i < width_; ++i) rows[r * width_ + i] -= mean;
  }
}

// By what the entries' products with a direction are multiplied to give their credit.
double ReadSweep::scale(double credit, double sum, double abs, int kind) const {
  if (kind == kLinear || (kind == kStart && !start_.root)) return 1.0;  // their sum is the credit
  if (kind == kStart) return inverse_denom(sum, abs, o_.beta);
  // Centring took from the credit what every source shares; nobody gets more than was read.
  return sum == 0 ? 0.0 : std::clamp(credit / sum, 0.0, 1.0);
}

void ReadSweep::to_stream(Norm kind, const WeightView& norm, const Values& dev,
                          Values& rows) const {
  if (kind == Norm::none) return;
  const Values weight = fetch(norm);
  for (std::size_t s = 0; s < rows.size() / width_; ++s) {
    const double inverse = dev.empty() ? 1.0 : 1.0 / dev[s];
    for (std::size_t i = 0; i < width_; ++i) rows[s * width_ + i] *= weight[i] * inverse;
  }
}

// A direction of the stream as the sublayer's output meets it, through the norm behind it.
ReadSweep::Values ReadSweep::behind(const WeightView& post, const Array& dev,
                                    const Values& g) const {
  if (!post) return g;
  const Values weight = fetch(post), deviation = fetch(d_.backend(), dev);
  Values out = g;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= weight[i % width_] / deviation[i / width_];
  return out;
}

ReadSweep::Values ReadSweep::direction_of(int kind, const Values& linear,
                                          const Values& keyed) const {
  Values out(length_ * width_, 0.0);
  if (kind == kStart) {
    std::copy(start_.direction.begin(), start_.direction.end(),
              out.begin() +
                  static_cast<std::ptrdiff_t>(static_cast<std::size_t>(start_.position) * width_));
  } else {
    out = kind == kLinear ? linear : keyed;
  }
  center(out);
  return out;
}

// Credit of every neuron at every position, [S, entries].
ReadSweep::Values ReadSweep::neuron_entries(int l, const Values& linear, const Values& keyed) {
  Backend& backend = d_.backend();
  const int writer = d_.writers().mlp(l);
  const auto n = static_cast<std::size_t>(c_.layer(l).entries());
  Values coef(length_ * n, 0.0);
  for (const int kind : {kStart, kLinear, kKeyed}) {
    if (kind == kStart && !starts_at(writer)) continue;
    const Values direction = direction_of(kind, linear, keyed);
    std::vector<int> queries;
    for (std::size_t q = 0; q < length_; ++q) {
      const auto row = std::span(direction).subspan(q * width_, width_);
      if (std::any_of(row.begin(), row.end(), [](double x) { return x != 0; }))
        queries.push_back(static_cast<int>(q));
    }
    if (queries.empty()) continue;
    Values rows;
    for (const int q : queries) {
      const auto row = std::span(direction).subspan(static_cast<std::size_t>(q) * width_, width_);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    Array directions = backend.zeros(static_cast<std::int64_t>(rows.size()));
    backend.upload(directions, 0, rows);
    Array products = backend.zeros(static_cast<std::int64_t>(queries.size() * n));
    backend.mlp_numerators(d_.mlp_view(l), queries, directions, products);
    const Values r = fetch(backend, products);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const auto q = static_cast<std::size_t>(queries[i]);
      double sum = 0, abs = 0;
      for (std::size_t k = 0; k < n; ++k) {
        sum += r[i * n + k];
        abs += std::fabs(r[i * n + k]);
      }
      if (abs == 0) continue;
      const double by = scale(keyed_[at(queries[i], writer)], sum, abs, kind);
      for (std::size_t k = 0; k < n; ++k) coef[q * n + k] += by * r[i * n + k];
      if (kind == kStart && start_.root && start_.root->writer == writer) {
        entries_.assign(r.begin() + static_cast<std::ptrdiff_t>(i * n),
                        r.begin() + static_cast<std::ptrdiff_t>((i + 1) * n));
        for (double& x : entries_) x *= by;
      }
    }
  }
  return coef;
}

// What the readers of one side were multiplied with, folded: coef [S, its entries] times their
// weights, [S, D].
ReadSweep::Values ReadSweep::neuron_read(int l, MlpSide side, const Values& coef) const {
  Backend& backend = d_.backend();
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const LayerConfig& shape = c_.layer(l);
  const auto rows = static_cast<std::int64_t>(length_);
  Values read(length_ * width_, 0.0);
  const Role role = side == MlpSide::up ? Role::w_up : Role::w_in;
  if (!shape.mixture()) {
    linear_back(backend, w[role], coef, read, rows);
    return read;
  }
  const Routing& routing = *d_.trace().layers[static_cast<std::size_t>(l)].routing;
  const auto chosen = static_cast<std::size_t>(routing.chosen);
  if (side == MlpSide::router) {
    const auto experts = static_cast<std::size_t>(routing.experts);
    Values by_expert(length_ * experts, 0.0);
    for (std::size_t i = 0; i < length_ * chosen; ++i) {
      const std::size_t row = i / chosen * experts;
      by_expert[row + static_cast<std::size_t>(routing.expert[i])] += coef[i];
      for (std::size_t e = 0; o_.scores == Scores::centered && e < experts; ++e)
        by_expert[row + e] -= coef[i] / static_cast<double>(experts);
    }
    linear_back(backend, w[Role::w_r], by_expert, read, rows);
    return read;
  }
  const auto neurons = static_cast<std::size_t>(shape.n_neurons);
  std::map<int, std::vector<std::size_t>> slots;
  for (std::size_t i = 0; i < length_ * chosen; ++i) slots[routing.expert[i]].push_back(i);
  for (const auto& [expert, used] : slots) {
    Values own, back(used.size() * width_, 0.0);
    for (const std::size_t slot : used) {
      const auto from = coef.begin() + static_cast<std::ptrdiff_t>(slot * neurons);
      own.insert(own.end(), from, from + static_cast<std::ptrdiff_t>(neurons));
    }
    linear_back(backend, w.experts[static_cast<std::size_t>(expert)][role], own, back,
                static_cast<std::int64_t>(used.size()));
    for (std::size_t i = 0; i < used.size(); ++i) {
      double* to = read.data() + used[i] / chosen * width_;
      for (std::size_t k = 0; k < width_; ++k) to[k] += back[i * width_ + k];
    }
  }
  return read;
}

void ReadSweep::mlp(int l, const Values& linear, const Values& keyed, Values& out) {
  Backend& backend = d_.backend();
  const LayerTrace& t = d_.trace().layers[static_cast<std::size_t>(l)];
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const LayerConfig& shape = c_.layer(l);
  const Values entries = neuron_entries(l, linear, keyed);
  const std::vector<MlpReader> readers = mlp_readers(shape);
  const Values dev = fetch(backend, t.dev_mlp);
  const auto visible = static_cast<std::size_t>(d_.writers().visible_to_mlp(l));
  Layer& layer = layers_[static_cast<std::size_t>(l)];
  const bool linearized = o_.mlp == MlpRule::linearized;
  for (std::size_t index = 0; index < readers.size(); ++index) {
    const MlpSide side = readers[index].side;
    const double weight = reader_weight(o_, shape, index);
    const auto n = static_cast<std::size_t>(reader_entries(shape, side));
    Values coef = entries;
    if (side == MlpSide::router) {  // an expert's credit is that of its neurons
      const auto neurons = static_cast<std::size_t>(shape.n_neurons);
      coef.assign(length_ * n, 0.0);
      for (std::size_t i = 0; i < entries.size(); ++i) coef[i / neurons] += entries[i];
    }
    Values c(coef.size());
    if (linearized) {
      const Values pre = fetch(backend, d_.pre(l, side, o_.scores));
      for (std::size_t i = 0; i < c.size(); ++i)
        c[i] = coef[i] / (std::fabs(pre[i]) < 1e-10 ? 1e-10 : pre[i]);
    } else {
      const MlpSums& sums = d_.mlp(l, side, o_.scores, context_);
      const Values sum = fetch(backend, sums.sum), abs = fetch(backend, sums.abs);
      for (std::size_t i = 0; i < c.size(); ++i) {
        c[i] = weight * coef[i] * inverse_denom(sum[i], abs[i], o_.beta);
        passed_ += std::fabs(coef[i]);
        if (ill_conditioned(sum[i], abs[i])) doubt_ += std::fabs(coef[i]);
      }
    }
    Values read = neuron_read(l, side, c);
    to_stream(shape.mlp_norm, w[Role::mlp_norm_w], dev, read);
    for (std::size_t q = 0; linearized && q < length_; ++q) {  // one denominator a position
      double credit = 0, sum = 0, abs = 0;
      for (std::size_t i = 0; i < n; ++i) credit += coef[q * n + i];
      for (std::size_t j = 0; j < visible; ++j) {
        const double r = dot(std::span(vectors_).subspan((q * writers_ + j) * width_, width_),
                             std::span(read).subspan(q * width_, width_));
        sum += r;
        abs += std::fabs(r);
      }
      const double by = weight * credit * inverse_denom(sum, abs, o_.beta);
      for (std::size_t i = 0; i < width_; ++i) read[q * width_ + i] *= by;
    }
    for (std::size_t i = 0; i < read.size(); ++i) out[i] += read[i];
    if (with_edges_) layer.mlp_vector[index] = std::move(read);
  }
}

// Rotary, then the norm of queries or keys with its deviation held fixed.
void ReadSweep::undo(const LayerConfig& shape, const WeightView& norm, const Array& dev,
                     std::size_t heads, Values& g) const {
  const auto e = static_cast<std::size_t>(c_.d_head);
  const Values weight = fetch(norm);
  const Values deviation = norm ? fetch(d_.backend(), dev) : Values();
  const Values frequencies = rotary_frequencies(shape.rope, static_cast<int>(length_));
  for (std::size_t s = 0; s < length_; ++s) {
    for (std::size_t h = 0; h < heads; ++h) {
      const auto row = std::span(g).subspan((s * heads + h) * e, e);
      if (shape.rope.dims > 0) rotate_back(shape.rope, frequencies, static_cast<int>(s), row);
      if (!norm) continue;
      for (std::size_t i = 0; i < e; ++i)
        row[i] *= weight[(h * e + i) % weight.size()] / deviation[s * heads + h];
    }
  }
}

void ReadSweep::attention(int l, const Values& linear, const Values& keyed, Values& out,
                          Values& out_keyed) {
  Backend& backend = d_.backend();
  const LayerTrace& t = d_.trace().layers[static_cast<std::size_t>(l)];
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const auto heads = static_cast<std::size_t>(c_.n_heads),
             groups = static_cast<std::size_t>(c_.n_kv_heads),
             e = static_cast<std::size_t>(c_.d_head), pairs = triangle(length_);
  const auto rows = static_cast<std::int64_t>(length_);
  Layer& layer = layers_[static_cast<std::size_t>(l)];
  layer.pattern = fetch(backend, t.pattern);
  layer.dev = fetch(backend, t.dev_attn);
  layer.key_coef.assign(heads * pairs, 0.0);
  const Values q = fetch(backend, t.q), k = fetch(backend, t.k), v = fetch(backend, t.v);
  const AttentionSums& sums = d_.attention(l, o_.scores, context_);
  const Values k_sum = fetch(backend, sums.k_sum), k_abs = fetch(backend, sums.k_abs),
               q_sum = fetch(backend, sums.q_sum), q_abs = fetch(backend, sums.q_abs);
  // Each group's direction in the heads' own space, [S, H, E].
  std::array<Values, 3> by_kind;
  for (const int kind : {kStart, kLinear, kKeyed}) {
    by_kind[static_cast<std::size_t>(kind)].assign(length_ * heads * e, 0.0);
    linear_back(backend, w[Role::w_o],
                behind(w[Role::attn_post_w], t.attn_out_dev, direction_of(kind, linear, keyed)),
                by_kind[static_cast<std::size_t>(kind)], rows);
  }
  Values g_q(length_ * heads * e, 0.0), g_k(length_ * groups * e, 0.0), g_v = g_k;
  Values effective(length_ * heads * e, 0.0);
  const LayerConfig& shape = c_.layer(l);
  const double root_scale = shape.attention_scale;
  const bool centered = o_.scores == Scores::centered;
  backend.parallel_for(c_.n_kv_heads, [&](std::int64_t task) {
    const auto g = static_cast<std::size_t>(task);
    const auto size = static_cast<std::size_t>(c_.group_size());
    Values entry(length_), r(length_), key_coef(length_), query_coef(length_);
    for (std::size_t h = g * size; h < (g + 1) * size; ++h) {
      const int writer = d_.writers().head(l, static_cast<int>(h));
      for (std::size_t i = 0; i < length_; ++i) {
        const double* alpha = layer.pattern.data() + h * pairs + triangle(i);
        double* eff = effective.data() + (i * heads + h) * e;
        std::fill(entry.begin(), entry.end(), 0.0);
        const auto begin = static_cast<std::size_t>(shape.first_source(static_cast<int>(i)));
        const double sources = static_cast<double>(i + 1 - begin);
        bool any = false;
        for (const int kind : {kStart, kLinear, kKeyed}) {
          if (kind == kStart && (static_cast<int>(i) != start_.position || !starts_at(writer)))
            continue;
          const auto z =
              std::span(by_kind[static_cast<std::size_t>(kind)]).subspan((i * heads + h) * e, e);
          double sum = 0, abs = 0;
          for (std::size_t s = begin; s <= i; ++s) {
            r[s] = alpha[s] * dot(z, std::span(v).subspan((s * groups + g) * e, e));
            sum += r[s];
            abs += std::fabs(r[s]);
          }
          if (abs == 0) continue;
          const double by = scale(keyed_[at(static_cast<int>(i), writer)], sum, abs, kind);
          if (by == 0) continue;
          any = true;
          for (std::size_t s = begin; s <= i; ++s) entry[s] += by * r[s];
          for (std::size_t x = 0; x < e; ++x) eff[x] += by * z[x];
        }
        if (start_.root && start_.root->writer == writer && start_.position == static_cast<int>(i))
          entries_.assign(entry.begin(), entry.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        if (!any) continue;
        double key_mean = 0, query_mean = 0;
        for (std::size_t s = begin; s <= i; ++s) {
          const std::size_t pair = h * pairs + triangle(i) + s;
          key_coef[s] = o_.weights[0] * entry[s] *
                        floored_inverse(k_sum[pair], k_abs[pair], o_.beta, o_.floor);
          query_coef[s] = o_.weights[1] * entry[s] *
                          floored_inverse(q_sum[pair], q_abs[pair], o_.beta, o_.floor);
          key_mean += key_coef[s] / sources;
          query_mean += query_coef[s] / sources;
        }
        double* to_q = g_q.data() + (i * heads + h) * e;
        const double* query = q.data() + (i * heads + h) * e;
        for (std::size_t s = begin; s <= i; ++s) {
          if (o_.keys == Keys::spread) key_coef[s] -= key_mean;
          if (centered) query_coef[s] -= query_mean;
          layer.key_coef[h * pairs + triangle(i) + s] = key_coef[s];
          const double* key = k.data() + (s * groups + g) * e;
          double* to_k = g_k.data() + (s * groups + g) * e;
          double* to_v = g_v.data() + (s * groups + g) * e;
          for (std::size_t x = 0; x < e; ++x) {
            to_q[x] += root_scale * query_coef[s] * key[x];
            to_k[x] += root_scale * key_coef[s] * query[x];
            to_v[x] += o_.weights[2] * alpha[s] * eff[x];
          }
        }
      }
    }
  });
  undo(shape, w[Role::q_norm], t.q_dev, heads, g_q);
  undo(shape, w[Role::k_norm], t.k_dev, groups, g_k);
  Values read(length_ * width_, 0.0);
  linear_back(backend, w[Role::w_v], g_v, read, rows);
  linear_back(backend, w[Role::w_q], g_q, read, rows);
  to_stream(shape.attn_norm, w[Role::attn_norm_w], layer.dev, read);
  for (std::size_t i = 0; i < read.size(); ++i) out[i] += read[i];
  read.assign(length_ * width_, 0.0);
  linear_back(backend, w[Role::w_k], g_k, read, rows);
  to_stream(shape.attn_norm, w[Role::attn_norm_w], layer.dev, read);
  for (std::size_t i = 0; i < read.size(); ++i) out_keyed[i] += read[i];
  key_credit(l);
  if (!with_edges_) return;
  // Per head, for edges: [H, S, D].
  const auto per_head = [&](const WeightView& from, const Values& g, bool by_group, bool over_dev,
                            double weight, std::vector<double>& to) {
    to.resize(heads * length_ * width_);
    for (std::size_t h = 0; h < heads; ++h) {
      Values one(length_ * e), stream(length_ * width_, 0.0);
      for (std::size_t s = 0; s < length_; ++s) {
        for (std::size_t x = 0; x < e; ++x) one[s * e + x] = weight * g[(s * heads + h) * e + x];
      }
      const auto column =
          static_cast<std::int64_t>(by_group ? h / static_cast<std::size_t>(c_.group_size()) : h);
      linear_back(backend, head_of(from, column, static_cast<std::int64_t>(e)), one, stream, rows);
      to_stream(shape.attn_norm, w[Role::attn_norm_w], over_dev ? layer.dev : Values(), stream);
      std::copy(stream.begin(), stream.end(),
                to.begin() + static_cast<std::ptrdiff_t>(h * length_ * width_));
    }
  };
  per_head(w[Role::w_q], g_q, false, true, 1.0, layer.query_vector);
  per_head(w[Role::w_v], effective, true, false, o_.weights[2], layer.value_vector);
}

std::vector<double> ReadSweep::key_rows(int l, int h, int q) const {
  Backend& backend = d_.backend();
  const std::int64_t cl = d_.writers().visible_to_attention(l);
  const auto size = static_cast<std::size_t>((q + 1) * cl);
  std::vector<double> out(size);
  if (d_.keeps_key_scores()) {
    backend.download(d_.attention(l, o_.scores).k_scores, (h * tri(d_.length()) + tri(q)) * cl,
                     out);
    return out;
  }
  Array rows = backend.zeros((q + 1) * cl);
  backend.key_scores(d_.attention_view(l), o_.scores, h, q, rows);
  backend.download(rows, 0, out);
  return out;
}

// Credit by keys, which is a share of centred scores and no product with the writer alone.
void ReadSweep::key_credit(int l) {
  Layer& layer = layers_[static_cast<std::size_t>(l)];
  const auto cl = static_cast<std::size_t>(d_.writers().visible_to_attention(l));
  const auto heads = static_cast<std::size_t>(c_.n_heads);
  const std::size_t pairs = triangle(length_);
  const bool spread = o_.keys == Keys::spread;
  if (spread) layer.key_offset.assign(heads * length_ * cl, 0.0);
  std::vector<Values> sums(heads, Values(length_ * cl, 0.0));
  const auto one = [&](std::int64_t head) {
    const auto h = static_cast<std::size_t>(head);
    Values column;
    for (std::size_t q = 0; q < length_; ++q) {
      const double* coef = layer.key_coef.data() + h * pairs + triangle(q);
      if (std::all_of(coef, coef + q + 1, [](double x) { return x == 0; })) continue;
      const Values rows = key_rows(l, static_cast<int>(h), static_cast<int>(q));
      Values offset(cl, 0.0);
      const auto begin = static_cast<std::size_t>(c_.layer(l).first_source(static_cast<int>(q)));
      const std::size_t middle = (q - begin) / 2;
      for (std::size_t j = 0; spread && j < cl; ++j) {
        column.resize(q + 1 - begin);
        for (std::size_t s = begin; s <= q; ++s) column[s - begin] = rows[s * cl + j];
        std::nth_element(column.begin(), column.begin() + static_cast<std::ptrdiff_t>(middle),
                         column.end());
        offset[j] = column[middle];
        layer.key_offset[(h * length_ + q) * cl + j] = offset[j];
      }
      for (std::size_t s = 0; s <= q; ++s) {
        if (coef[s] == 0) continue;
        for (std::size_t j = 0; j < cl; ++j)
          sums[h][s * cl + j] += coef[s] * (rows[s * cl + j] - offset[j]);
      }
    }
  };
  // Without a table every row is made anew by a call that uses all threads itself.
  if (d_.keeps_key_scores()) {
    d_.backend().parallel_for(c_.n_heads, one);
  } else {
    for (int h = 0; h < c_.n_heads; ++h) one(h);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t s = 0; s < length_; ++s) {
      for (std::size_t j = 0; j < cl; ++j) keyed_[s * writers_ + j] += sums[h][s * cl + j];
    }
  }
}

std::vector<double> ReadSweep::root_entries() const { return entries_; }

void ReadSweep::sent(int writer, int position, SentRows& out) const {
  const Writer& node = d_.writers()[writer];
  const Layer& layer = layers_[static_cast<std::size_t>(node.layer)];
  const auto q = static_cast<std::size_t>(position);
  const auto vector_of = [&](std::size_t s, std::size_t j) {
    return std::span<const double>(vectors_).subspan((s * writers_ + j) * width_, width_);
  };
  if (node.kind == WriterKind::mlp) {
    const auto cm = static_cast<std::size_t>(d_.writers().visible_to_mlp(node.layer));
    for (std::size_t side = 0; side < mlp_readers(c_.layer(node.layer)).size(); ++side) {
      out.mlp[side].resize(cm);
      const auto read = std::span<const double>(layer.mlp_vector[side]).subspan(q * width_, width_);
      for (std::size_t j = 0; j < cm; ++j) out.mlp[side][j] = dot(vector_of(q, j), read);
    }
    return;
  }
  const auto cl = static_cast<std::size_t>(d_.writers().visible_to_attention(node.layer));
  const auto h = static_cast<std::size_t>(node.head);
  const std::size_t row = h * triangle(length_) + triangle(q);
  const double* coef = layer.key_coef.data() + row;
  out.k.assign((q + 1) * cl, 0.0);
  out.v.assign((q + 1) * cl, 0.0);
  out.q.assign(cl, 0.0);
  if (!std::all_of(coef, coef + q + 1, [](double x) { return x == 0; })) {
    const Values rows = key_rows(node.layer, node.head, position);
    const double* offset =
        layer.key_offset.empty() ? nullptr : layer.key_offset.data() + (h * length_ + q) * cl;
    for (std::size_t s = 0; s <= q; ++s) {
      for (std::size_t j = 0; coef[s] != 0 && j < cl; ++j)
        out.k[s * cl + j] = coef[s] * (rows[s * cl + j] - (offset ? offset[j] : 0.0));
    }
  }
  const double* query = layer.query_vector.data() + (h * length_ + q) * width_;
  const double* value = layer.value_vector.data() + (h * length_ + q) * width_;
  const Values query_read(query, query + width_), value_read(value, value + width_);
  const auto zero = [](double x) { return x == 0; };
  if (!std::all_of(query_read.begin(), query_read.end(), zero)) {
    for (std::size_t j = 0; j < cl; ++j) out.q[j] = dot(vector_of(q, j), query_read);
  }
  if (!std::all_of(value_read.begin(), value_read.end(), zero)) {
    for (std::size_t s = 0; s <= q; ++s) {
      const double dev = c_.layer(node.layer).attn_norm == Norm::none ? 1.0 : layer.dev[s];
      const double by = layer.pattern[row + s] / dev;
      for (std::size_t j = 0; j < cl; ++j)
        out.v[s * cl + j] = by * dot(vector_of(s, j), value_read);
    }
  }
}

}  // namespace unpack
