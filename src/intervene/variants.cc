#include "intervene/variants.h"

#include <algorithm>
#include <cmath>

#include "backend/mlp_readers.h"
#include "base/index.h"
#include "forward/block.h"
#include "intervene/outputs.h"
#include "unpack/error.h"

namespace unpack::interventions {

CleanRun::CleanRun(backend::Backend& backend, const Writers& writers,
                   const std::vector<std::vector<TokenId>>& prompts, const RunContext& context)
    : backend_(backend),
      writers_(writers),
      prompts_(prompts),
      pass_(forward::forward(backend, prompts, {}, context)) {}

const backend::Array& CleanRun::stream(int layer) const {
  return layer < backend_.config().n_layers ? pass_.layers[layer].x_pre : pass_.x_final;
}

const backend::Array& CleanRun::vectors(int writer) const {
  const Writer& w = writers_[writer];
  if (w.kind == WriterKind::emb) return pass_.emb;
  if (w.kind == WriterKind::pos) return pass_.pos;
  const forward::LayerPass& layer = pass_.layers[w.layer];
  if (w.kind == WriterKind::mlp) return layer.mlp_out;
  const auto known = vectors_.find(writer);
  if (known != vectors_.end()) return known->second;
  const backend::Array out =
      forward::write_head(backend_, w.layer, layer.z, layer.attn_out_dev, w.head, pass_.rows());
  return vectors_.emplace(writer, out).first->second;
}

int first_changed_layer(const Writers& writers, const ModelConfig& config, const Variant& variant) {
  int first = config.n_layers;
  if (!variant.zero.empty()) return 0;
  if (variant.cut) {
    const Writer& w = writers[variant.cut->writer];
    const bool own_mlp = variant.cut->channel == Channel::mlp && w.kind == WriterKind::head &&
                         variant.cut->writer < writers.visible_to_mlp(w.layer);
    first = std::min(first, own_mlp ? w.layer : w.layer + 1);
  }
  for (const Edge& edge : variant.edges) {
    if (edge.reader) first = std::min(first, writers[edge.reader->writer].layer);
  }
  for (const OutputChange& change : variant.outputs)
    first = std::min(first, std::max(0, writers[change.writer].layer));
  return first;
}

namespace {

// One row of a reader's input, changed: row `row` of the batch plus the differences of its edges.
struct ChangedRow {
  Index row = 0;
  int position = 0;
  std::vector<std::size_t> edges;  // indices into the variant's list
};

class Runner {
 public:
  // `record` takes what attention reads; `given` is what readers' rows come from in place of this
  // run's own stream.
  Runner(const CleanRun& clean, const CleanRun* other, const std::vector<Variant>& variants,
         ReadStreams* record = nullptr, const ReadStreams* given = nullptr)
      : clean_(clean),
        other_(other),
        variants_(variants),
        record_(record),
        given_(given),
        backend_(clean.backend()),
        c_(backend_.config()),
        outputs_(clean, other) {
    for (const Variant& v : variants) {
      segments_.push_back({rows_, clean.pass().segments[v.prompt].length, 0});
      rows_ += segments_.back().length;
      any_edges_ |= !v.edges.empty();
      any_zero_ |= !v.zero.empty();
      any_cut_ |= v.cut.has_value();
      for (const OutputChange& change : v.outputs)
        outputs_.add(change, v.prompt, segments_.back().begin);
    }
    if (any_edges_ && !other) throw InternalError("[run_variants] patched edges need a second run");
  }

  VariantStreams run(int target_position, const RunContext& context) {
    int first = c_.n_layers;
    for (const Variant& v : variants_)
      first = std::min(first, first_changed_layer(clean_.writers(), c_, v));
    backend::Array x;
    if (first == c_.n_layers) {
      x = gather(clean_.stream(first), c_.d_model);
    } else {
      const backend::Array start = gather(clean_.stream(first), c_.d_model);
      std::vector<std::vector<TokenId>> prompts;
      for (const Variant& v : variants_) prompts.push_back(clean_.prompts()[v.prompt]);
      const forward::ForwardHooks hooks = make_hooks();
      forward::ForwardOptions options;
      options.keep = false;
      options.hooks = &hooks;
      options.first_layer = first;
      // Zeroed embeddings begin at the beginning; everything else where its first reader is.
      options.start = any_zero_ || outputs_.change_embeddings() ? nullptr : &start;
      x = forward::forward(backend_, prompts, options, context).x_final;
    }
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      for (const Edge& edge : variants_[i].edges) {
        if (!edge.reader) add_difference(i, edge, x, segments_[i].begin + target_position);
      }
    }
    return {x, segments_};
  }

 private:
  backend::Array gather(const backend::Array& from, Index width) {
    backend::Array out = backend_.zeros(rows_ * width);
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      const backend::Segment& source = clean_.pass().segments[variants_[i].prompt];
      backend_.copy(from, source.begin * width, out, segments_[i].begin * width,
                    source.length * width);
    }
    return out;
  }

  backend::Array read_at(int layer) {
    const auto known = given_->find(layer);
    return known != given_->end() ? known->second : gather(clean_.stream(layer), c_.d_model);
  }

  // to[row] += (value on the other prompt) - (value on this one)
  void add_difference(std::size_t variant, const Edge& edge, backend::Array& to, Index row) {
    const std::size_t prompt = variants_[variant].prompt;
    const Index at = edge.writer.position;
    backend_.add_rows(other_->vectors(edge.writer.writer),
                      other_->pass().segments[prompt].begin + at, to, row, 1, c_.d_model, 1.0);
    backend_.add_rows(clean_.vectors(edge.writer.writer), clean_.pass().segments[prompt].begin + at,
                      to, row, 1, c_.d_model, -1.0);
  }

  bool reads(const Variant& v, int layer, backend::Sublayer sublayer) const {
    if (!v.cut ||
        (v.cut->channel == Channel::attention) != (sublayer == backend::Sublayer::attention))
      return false;
    const Writers& writers = clean_.writers();
    return v.cut->writer < (sublayer == backend::Sublayer::attention
                                ? writers.visible_to_attention(layer)
                                : writers.visible_to_mlp(layer));
  }

  forward::ForwardHooks make_hooks() {
    forward::ForwardHooks hooks;
    if (any_zero_ || outputs_.change_embeddings()) {
      hooks.embeddings = [this](backend::Array& emb) {
        outputs_.apply(WriterKind::emb, -1, emb);
        const std::vector<double> nothing(c_.d_model, 0.0);
        for (std::size_t i = 0; i < variants_.size(); ++i) {
          for (const int s : variants_[i].zero)
            backend_.upload(emb, (segments_[i].begin + s) * c_.d_model, nothing);
        }
      };
    }
    if (any_cut_) {
      hooks.norm_input = [this](int layer, backend::Sublayer sublayer, const backend::Array& x,
                                backend::Array& changed) {
        bool any = false;
        for (const Variant& v : variants_) any |= reads(v, layer, sublayer);
        if (!any) return false;
        backend_.copy(x, 0, changed, 0, rows_ * c_.d_model);
        for (std::size_t i = 0; i < variants_.size(); ++i) {
          if (!reads(variants_[i], layer, sublayer)) continue;
          const backend::Segment& source = clean_.pass().segments[variants_[i].prompt];
          backend_.add_rows(clean_.vectors(variants_[i].cut->writer), source.begin, changed,
                            segments_[i].begin, source.length, c_.d_model, -1.0);
        }
        return true;
      };
    }
    if (outputs_.any()) {
      hooks.positions = [this](backend::Array& pos) { outputs_.apply(WriterKind::pos, -1, pos); };
      hooks.mlp_written = [this](int layer, backend::Array& out) {
        outputs_.apply(WriterKind::mlp, layer, out);
      };
    }
    if (any_edges_ || outputs_.any()) {
      hooks.mixed = [this](int layer, const backend::Array& x, const backend::Array& q,
                           const backend::Array& k, const backend::Array& v, backend::Array& z) {
        if (record_ != nullptr) {
          backend::Array& kept = (*record_)[layer] = backend_.zeros(rows_ * c_.d_model);
          backend_.copy(x, 0, kept, 0, rows_ * c_.d_model);
        }
        patch_heads(layer, given_ != nullptr ? read_at(layer) : x, q, k, v, z);
        outputs_.apply(WriterKind::head, layer, z);
      };
    }
    if (any_edges_) {
      hooks.router = [this](int layer, const backend::Array& x, backend::Array& logits) {
        patch_mlp(layer, x, nullptr, backend::MlpSide::router, logits);
      };
      hooks.neurons = [this](int layer, const backend::Array& x, const backend::Routing* routing,
                             backend::Array& pre, backend::Array& up) {
        patch_mlp(layer, x, routing, backend::MlpSide::gate, pre);
        patch_mlp(layer, x, routing, backend::MlpSide::up, up);
      };
    }
    return hooks;
  }

  // Rows of the norm's input with the differences of the given edges added.
  backend::Array changed_rows(std::size_t variant, const backend::Array& x,
                              const std::vector<ChangedRow>& rows) {
    backend::Array out = backend_.zeros(std::ssize(rows) * c_.d_model);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Index to = i;
      backend_.copy(x, rows[i].row * c_.d_model, out, to * c_.d_model, c_.d_model);
      for (const std::size_t e : rows[i].edges)
        add_difference(variant, variants_[variant].edges[e], out, to);
    }
    return out;
  }

  // Readers of one layer and kind among a variant's edges, each with its edges.
  std::vector<std::pair<Node, std::vector<std::size_t>>> readers(const Variant& variant, int layer,
                                                                 WriterKind kind) const {
    std::vector<std::pair<Node, std::vector<std::size_t>>> out;
    for (std::size_t e = 0; e < variant.edges.size(); ++e) {
      const auto& reader = variant.edges[e].reader;
      if (!reader || clean_.writers()[reader->writer].layer != layer ||
          clean_.writers()[reader->writer].kind != kind)
        continue;
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&](const auto& entry) { return entry.first == *reader; });
      if (known == out.end()) {
        out.push_back({*reader, {e}});
      } else {
        known->second.push_back(e);
      }
    }
    return out;
  }

  void patch_heads(int layer, const backend::Array& x, const backend::Array& q,
                   const backend::Array& k, const backend::Array& v, backend::Array& z) {
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      if (variants_[i].heads_frozen) {
        const backend::Segment& source = clean_.pass().segments[variants_[i].prompt];
        const Index width = static_cast<Index>(c_.n_heads) * c_.d_head;
        backend_.copy(clean_.pass().layers[layer].z, source.begin * width, z,
                      segments_[i].begin * width, source.length * width);
      }
      for (const auto& [reader, edges] : readers(variants_[i], layer, WriterKind::head))
        patch_head(i, layer, reader, edges, x, q, k, v, z);
    }
  }

  void patch_head(std::size_t variant, int layer, const Node& reader,
                  const std::vector<std::size_t>& edges, const backend::Array& x,
                  const backend::Array& q, const backend::Array& k, const backend::Array& v,
                  backend::Array& z) {
    const auto& list = variants_[variant].edges;
    const Index begin = segments_[variant].begin;
    std::vector<ChangedRow> rows;  // one for every branch and position
    std::vector<Branch> branches;
    for (const std::size_t e : edges) {
      const Index row = begin + list[e].writer.position;
      std::size_t at = 0;
      while (at < rows.size() && !(rows[at].row == row && branches[at] == list[e].branch)) ++at;
      if (at == rows.size()) {
        rows.push_back({row, list[e].writer.position, {}});
        branches.push_back(list[e].branch);
      }
      rows[at].edges.push_back(e);
    }
    const Index heads = c_.n_heads, groups = c_.n_kv_heads, e = c_.d_head;
    const int head = clean_.writers()[reader.writer].head;
    const Index group = head / c_.group_size();
    std::vector<int> positions;
    for (const ChangedRow& row : rows) positions.push_back(row.position);
    forward::LayerPass changed;
    forward::read_heads(backend_, layer, changed_rows(variant, x, rows), positions,
                        segments_[variant].length, changed);

    // The reader alone attends once more, to keys and values with its own ones put in place.
    const Index sources = reader.position + 1;
    backend::Array query = backend_.zeros(heads * e), keys = backend_.zeros(sources * groups * e),
                   values = backend_.zeros(sources * groups * e), mixed = backend_.zeros(heads * e);
    backend_.copy(q, (begin + reader.position) * heads * e, query, 0, heads * e);
    backend_.copy(k, begin * groups * e, keys, 0, sources * groups * e);
    backend_.copy(v, begin * groups * e, values, 0, sources * groups * e);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Index at = r;
      const Index to = (rows[r].position * groups + group) * e;
      if (branches[r] == Branch::Q)
        backend_.copy(changed.q, (at * heads + head) * e, query, head * e, e);
      if (branches[r] == Branch::K)
        backend_.copy(changed.k, (at * groups + group) * e, keys, to, e);
      if (branches[r] == Branch::V)
        backend_.copy(changed.v, (at * groups + group) * e, values, to, e);
    }
    const std::vector<backend::Segment> alone = {{0, 1, reader.position}};
    const std::vector<Index> key_begin = {0};
    forward::mix_heads(backend_, layer, query, keys, values, alone, key_begin, mixed);
    backend_.copy(mixed, head * e, z, ((begin + reader.position) * heads + head) * e, e);
  }

  // What the patched readers of one side make of their changed inputs replaces rows of `out`.
  void patch_mlp(int layer, const backend::Array& x, const backend::Routing* routing,
                 backend::MlpSide side, backend::Array& out) {
    const LayerConfig& shape = c_.layer(layer);
    const Index width = side == backend::MlpSide::router ? shape.n_experts : shape.entries();
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      for (const auto& [reader, edges] : readers(variants_[i], layer, WriterKind::mlp)) {
        const Index row = segments_[i].begin + reader.position;
        ChangedRow changed{row, reader.position, {}};
        for (const std::size_t e : edges) {
          if (backend::side_of(variants_[i].edges[e].branch) == side) changed.edges.push_back(e);
        }
        if (changed.edges.empty()) continue;
        const backend::Routing own = routing != nullptr ? routing->of_row(row) : backend::Routing{};
        backend::Array read = backend_.zeros(width);
        forward::read_neurons(backend_, layer, side, changed_rows(i, x, {changed}), 1,
                              routing != nullptr ? &own : nullptr, read);
        backend_.copy(read, 0, out, row * width, width);
      }
    }
  }

  const CleanRun& clean_;
  const CleanRun* other_;
  const std::vector<Variant>& variants_;
  ReadStreams* record_;
  const ReadStreams* given_;
  backend::Backend& backend_;
  const ModelConfig& c_;
  OutputChanges outputs_;
  std::vector<backend::Segment> segments_;
  Index rows_ = 0;
  bool any_edges_ = false, any_zero_ = false, any_cut_ = false;
};

}  // namespace

VariantStreams run_variants(const CleanRun& clean, const CleanRun* other,
                            const std::vector<Variant>& variants, int target_position,
                            const RunContext& context) {
  return Runner(clean, other, variants).run(target_position, context);
}

namespace {

// The edges of a variant's senders into the MLPs below its last reader.
std::vector<Edge> feeders(const Writers& writers, const ModelConfig& config,
                          const std::vector<Edge>& edges) {
  std::map<std::pair<int, int>, int> last;  // sender and position -> layer of its last reader
  for (const Edge& edge : edges) {
    if (!edge.reader || writers[edge.reader->writer].kind != WriterKind::head)
      throw InternalError("[run_paths] an edge that leads into no head");
    int& layer = last[{edge.writer.writer, edge.writer.position}];
    layer = std::max(layer, writers[edge.reader->writer].layer);
  }
  std::vector<Edge> out;
  for (const auto& [sender, below] : last) {
    for (int l = 0; l < below; ++l) {
      if (sender.first >= writers.visible_to_mlp(l)) continue;
      for (const backend::MlpReader& reader : backend::mlp_readers(config.layer(l)))
        out.push_back(
            {{sender.first, sender.second}, reader.branch, Node{writers.mlp(l), sender.second}});
    }
  }
  return out;
}

}  // namespace

VariantStreams run_paths(const CleanRun& clean, const CleanRun& other,
                         const std::vector<Variant>& variants, int target_position,
                         const RunContext& context) {
  std::vector<Variant> fed = variants;
  for (Variant& v : fed) {
    v.edges = feeders(clean.writers(), clean.backend().config(), v.edges);
    v.heads_frozen = true;
  }
  ReadStreams read;
  Runner(clean, &other, fed, &read).run(target_position, context);
  return Runner(clean, &other, variants, nullptr, &read).run(target_position, context);
}

}  // namespace unpack::interventions
