#include "credit/flow.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/index.h"
#include "credit/node_edges.h"

namespace unpack::credit {

namespace {

template <typename From>
void add_scaled(double scale, const From* from, std::size_t n, double* to) {
  for (std::size_t j = 0; j < n; ++j) to[j] += scale * from[j];
}

// What the keys of the layers so far read, as one vector a position, [S, D]: a writer is read when
// the sweep comes to it, for all layers above it at once.
class KeysAbove {
 public:
  KeysAbove(const decompose::Decomposition& d, Flow& flow) : d_(d), flow_(flow) {}

  // To add to.
  std::span<double> vectors() {
    if (vectors_.empty())
      vectors_.assign(static_cast<std::size_t>(d_.length()) * d_.config().d_model, 0.0);
    return vectors_;
  }
  // Gives writers `first` to `end` their credit.
  void read(int first, int end) {
    if (vectors_.empty()) return;
    const std::size_t stride = d_.writers().count(), count = end - first;
    std::vector<double> read;
    d_.backend().credit_on_queries()->read_folded(d_.writer_vectors(), d_.writers().count(), first,
                                                  end, vectors_, read);
    for (std::size_t s = 0; s < static_cast<std::size_t>(d_.length()); ++s)
      add_scaled(1.0, read.data() + s * count, count, flow_.indirect.data() + s * stride + first);
  }

 private:
  const decompose::Decomposition& d_;
  Flow& flow_;
  std::vector<double> vectors_;
};

// One layer's part of the sweep, from the nodes of that layer to what they read.
template <typename T>
class LayerSweep {
 public:
  LayerSweep(const Edges<T>& edges, const Start& start, int layer, KeysAbove& keys, Flow& flow)
      : edges_(edges),
        keys_(keys),
        flow_(flow),
        d_(edges.decomposition()),
        e_(edges.layer(layer)),
        layer_(layer),
        length_(d_.length()),
        stride_(d_.writers().count()),
        pairs_(backend::tri(length_)),
        nodes_(edges, layer, start.direct_edges(layer), flow) {}

  void mlp() {
    const std::size_t cm = d_.writers().visible_to_mlp(layer_);
    constexpr int kTogether = 64;  // positions
    d_.backend().parallel_for((length_ + kTogether - 1) / kTogether, [&](Index task) {
      const int first = task * kTogether;
      for (int q = first; q < std::min(length_, first + kTogether); ++q)
        nodes_.mlp(q,
                   [&](double credit, const auto* row) { add_scaled(credit, row, cm, at(q, 0)); });
    });
  }

  void attention() {
    const ModelConfig& c = d_.config();
    const std::size_t cl = d_.writers().visible_to_attention(layer_);
    const std::size_t length = length_;
    const std::size_t heads = c.n_heads;
    if (!edges_.has_table() && edges_.options().scores == Scores::raw && credit_on_queries(cl))
      return;
    std::vector<double> key_coef;  // [H, tri], where the keys are folded instead of looked up
    if (!edges_.has_table()) key_coef.assign(heads * pairs_, 0.0);
    // A head a task with sums of its own, which are then added up in one order whatever the number
    // of threads. Heads of a layer never read each other, so that none of the credit read here
    // changes.
    std::vector<std::vector<double>> sums(heads), values(heads);
    d_.backend().parallel_for(c.n_heads, [&](Index h) {
      const std::size_t i = h;
      sums[i].assign(length * cl, 0.0);
      values[i].assign(length, 0.0);
      send(h, cl, sums[i], values[i], key_coef);
    });
    d_.backend().parallel_for(length_, [&](Index position) {
      const std::size_t s = position;
      double* to = at(position, 0);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t value_row = h / c.group_size() * length + s;
        add_scaled(1.0, sums[h].data() + s * cl, cl, to);
        if (values[h][s] != 0)
          add_scaled(values[h][s], e_.value_edge.data() + value_row * cl, cl, to);
      }
    });
    if (!edges_.has_table()) fold_keys(key_coef, cl);
  }

 private:
  // Of a long prompt every pair's coefficients are read once, as they are. False, and nothing done,
  // where the backend cannot.
  bool credit_on_queries(std::size_t cl) {
    backend::CreditOnQueries* fold = d_.backend().credit_on_queries();
    if (fold == nullptr) return false;
    const ModelConfig& c = d_.config();
    const std::size_t heads = c.n_heads, length = length_;
    std::vector<double> credit(heads * length);
    for (std::size_t h = 0; h < heads; ++h) {
      const int writer = d_.writers().head(layer_, h);
      for (std::size_t q = 0; q < length; ++q) credit[h * length + q] = *at(q, writer);
    }
    const std::vector<double> own = nodes_.direct_keys(heads);
    fold->fold_keys_with(d_.attention_view(layer_),
                         {e_.key_coef.data(), credit, nodes_.direct_query(), own}, keys_.vectors());
    std::vector<double> values(heads * length, 0.0);
    d_.backend().parallel_for(c.n_heads, [&](Index head) {
      const std::size_t h = head;
      double* to = values.data() + h * length;
      for (std::size_t q = 0; q < length; ++q)
        nodes_.head(h, q,
                    [&](double x, const auto& rows) { add_scaled(x, rows.entry, q + 1, to); });
    });
    d_.backend().parallel_for(length_, [&](Index position) {
      const std::size_t s = position;
      double* to = at(position, 0);
      for (std::size_t h = 0; h < heads; ++h) {
        nodes_.head(h, s,
                    [&](double x, const auto& rows) { add_scaled(x, rows.query_edge, cl, to); });
        const double value = values[h * length + s];
        const std::size_t row = h / c.group_size() * length + s;
        if (value != 0) add_scaled(value, e_.value_edge.data() + row * cl, cl, to);
      }
    });
    return true;
  }

  double* at(int position, int writer) {
    return flow_.indirect.data() + position * stride_ + writer;
  }

  // What a head sends: by K and Q to sums[S, Cl], by V the weights of the sources.
  void send(int h, std::size_t cl, std::vector<double>& sums, std::vector<double>& values,
            std::vector<double>& key_coef) {
    const std::size_t hs = h;
    for (int q = 0; q < length_; ++q) {
      nodes_.head(hs, q, [&](double credit, const auto& own) {
        add_scaled(credit, own.query_edge, cl, sums.data() + q * cl);
        add_scaled(credit, own.entry, q + 1, values.data());
        if (!edges_.has_table()) {
          add_scaled(credit, own.key_coef, q + 1, key_coef.data() + hs * pairs_ + backend::tri(q));
          return;
        }
        const auto rows = edges_.key_rows(layer_, h, q);
        for (std::size_t s = 0; s <= static_cast<std::size_t>(q); ++s) {
          const double k = credit * own.key_coef[s];
          if (k != 0) add_scaled(k, rows.get() + s * cl, cl, sums.data() + s * cl);
        }
      });
    }
  }

  void fold_keys(const std::vector<double>& key_coef, std::size_t cl) {
    std::vector<double> folded;
    d_.backend().key_fold(d_.attention_view(layer_), key_coef, folded);
    for (int s = 0; s < length_; ++s) add_scaled(1.0, folded.data() + s * cl, cl, at(s, 0));
    if (edges_.options().scores == Scores::raw) return;
    const backend::AttentionSums& sums = d_.attention(layer_, edges_.options().scores);
    // sum over s' of coef (sK(q, s) - mean_s'): the raw scores folded, less the means.
    std::vector<double> mean(sums.k_mean.size());
    d_.backend().download(sums.k_mean, 0, mean);
    for (std::size_t h = 0; h < static_cast<std::size_t>(d_.config().n_heads); ++h) {
      for (int q = 0; q < length_; ++q) {
        const double* row = mean.data() + (h * length_ + q) * cl;
        for (int s = 0; s <= q; ++s) {
          const double k = key_coef[h * pairs_ + (backend::tri(q) + s)];
          if (k != 0) add_scaled(-k, row, cl, at(s, 0));
        }
      }
    }
  }

  const Edges<T>& edges_;
  KeysAbove& keys_;
  Flow& flow_;
  const decompose::Decomposition& d_;
  const LayerEdges<T>& e_;
  int layer_;
  int length_;
  std::size_t stride_;
  std::size_t pairs_;
  LayerNodes<T> nodes_;
};

}  // namespace

template <typename T>
Start start_at_target(const Edges<T>& edges, int position, const backend::Array& direction) {
  const decompose::Decomposition& d = edges.decomposition();
  Start start;
  start.position = position;
  d.writer_dots(position, direction, start.first);
  std::vector<int> layers(d.config().n_layers);
  std::iota(layers.begin(), layers.end(), 0);
  start.direct = edges.direct(layers, position, direction);
  return start;
}

template <typename T>
Start start_at_root(const Edges<T>& edges, const Node& root, const backend::Array* direction) {
  const decompose::Decomposition& d = edges.decomposition();
  Start start;
  start.position = root.position;
  start.first.assign(d.writers().count(), 0.0);
  start.root = root;
  start.root_is_direct = direction != nullptr;
  if (direction) {
    start.first[root.writer] = 1.0;
    const std::vector<int> layer = {d.writers()[root.writer].layer};
    start.direct = edges.direct(layer, root.position, *direction);
  }
  return start;
}

template <typename T>
Flow sweep(const Edges<T>& edges, const Start& start, const RunContext& context) {
  const decompose::Decomposition& d = edges.decomposition();
  const std::size_t writers = d.writers().count();
  const std::size_t length = d.length();
  Flow flow;
  flow.indirect.assign(length * writers, 0.0);
  flow.direct = start.first;
  if (start.root && !start.root_is_direct) {
    flow.indirect[start.root->position * writers + start.root->writer] = 1.0;
  }
  if (edges.device() != nullptr) {
    std::vector<backend::DeviceCredit::Direct> direct;
    for (const DirectEdges& x : start.direct)
      direct.push_back({x.layer,
                        x.entry,
                        x.key_coef,
                        x.query_edge,
                        {x.mlp_edge[0], x.mlp_edge[1], x.mlp_edge[2]}});
    if (!edges.by_layer()) {
      edges.device()->sweep(edges.device_layers(), edges.options().scores, start.position,
                            start.first, direct, flow.indirect);
    }
    for (int l = d.config().n_layers - 1; edges.by_layer() && l >= 0; --l) {
      context.report("layers", d.config().n_layers - 1 - l, d.config().n_layers);
      const DeviceLayer made = edges.device_layer(l);
      std::vector<backend::DeviceCredit::Direct> own;
      for (const auto& x : direct) {
        if (x.layer == l) own.push_back(x);
      }
      edges.device()->sweep(std::span(&made.layer, 1), edges.options().scores, start.position,
                            start.first, own, flow.indirect);
    }
  }
  double passed = 0;
  double doubtful = 0;
  KeysAbove keys(d, flow);
  for (int l = d.config().n_layers - 1; l >= 0; --l) {
    context.check();
    if (edges.device() == nullptr) {
      keys.read(d.writers().first_of_layer(l), d.writers().first_of_layer(l + 1));
      LayerSweep<T> layer(edges, start, l, keys, flow);
      layer.mlp();
      layer.attention();
    }
    const LayerEdges<T>& e = edges.light(l);
    for (std::size_t q = 0; q < length; ++q) {
      for (int h = 0; h <= d.config().n_heads; ++h) {
        const bool is_mlp = h == d.config().n_heads;
        const std::size_t w = is_mlp ? d.writers().mlp(l) : d.writers().head(l, h);
        const double credit = std::fabs(flow.indirect[q * writers + w]);
        passed += credit;
        doubtful += credit * (is_mlp ? e.mlp_doubt[q] : e.head_doubt[h * length + q]);
      }
    }
  }
  keys.read(0, d.writers().first_of_layer(0));
  flow.doubtful = passed > 0 ? doubtful / passed : 0.0;
  return flow;
}

template <typename T>
std::vector<std::pair<Branch, std::vector<double>>> outgoing(const Edges<T>& edges,
                                                             const Start& start, const Node& node) {
  const decompose::Decomposition& d = edges.decomposition();
  const Writer& writer = d.writers()[node.writer];
  const std::size_t stride = d.writers().count();
  const std::size_t size = d.length() * stride;
  const GraphNode from{node.writer, node.position, start.root_is_direct};
  const std::size_t q = node.position;
  std::vector<std::pair<Branch, std::vector<double>>> out;
  if (writer.kind == WriterKind::mlp) {
    for (const ReaderEdges& reader : reader_edges(edges, start, from)) {
      std::vector<double> to(size, 0.0);
      add_scaled(1.0, reader.row.data(), reader.row.size(), to.data() + q * stride);
      out.emplace_back(reader.branch, std::move(to));
    }
    return out;
  }
  const std::size_t cl = d.writers().visible_to_attention(writer.layer);
  const HeadEdges<T> head = head_edges(edges, start, from);
  std::vector<double> k(size, 0.0), query(size, 0.0), v(size, 0.0);
  for (std::size_t s = 0; s <= q; ++s) {
    add_scaled(head.key_coef[s], head.keys.get() + s * cl, cl, k.data() + s * stride);
    add_scaled(head.entry[s], head.values.get() + s * cl, cl, v.data() + s * stride);
  }
  add_scaled(1.0, head.query_edge.data(), cl, query.data() + q * stride);
  out.emplace_back(Branch::K, std::move(k));
  out.emplace_back(Branch::Q, std::move(query));
  out.emplace_back(Branch::V, std::move(v));
  return out;
}

template Start start_at_target<float>(const Edges<float>&, int, const backend::Array&);
template Start start_at_target<double>(const Edges<double>&, int, const backend::Array&);
template Start start_at_root<float>(const Edges<float>&, const Node&, const backend::Array*);
template Start start_at_root<double>(const Edges<double>&, const Node&, const backend::Array*);
template Flow sweep<float>(const Edges<float>&, const Start&, const RunContext&);
template Flow sweep<double>(const Edges<double>&, const Start&, const RunContext&);
template std::vector<std::pair<Branch, std::vector<double>>> outgoing<float>(const Edges<float>&,
                                                                             const Start&,
                                                                             const Node&);
template std::vector<std::pair<Branch, std::vector<double>>> outgoing<double>(const Edges<double>&,
                                                                              const Start&,
                                                                              const Node&);

}  // namespace unpack::credit
