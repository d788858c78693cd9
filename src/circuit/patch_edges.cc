#include "circuit/patch_edges.h"

#include <algorithm>
#include <map>

#include "base/index.h"
#include "engine/state.h"
#include "forward/block.h"

namespace unpack::circuit {

// One copy of the chunk an edge. Up to the edge's reader all copies are the plain pass, so that
// they begin at its layer; behind it they are plain passes of their own. Rows before the first
// change take no part but as keys and values, and of the last layer only the last rows are wanted.
class EdgePatcher::Copies {
 public:
  Copies(const EdgePatcher& owner, std::span<const std::size_t> edges)
      : owner_(owner),
        backend_(*engine::state_of(owner.model_)->backend),
        c_(owner.model_.config()),
        reader_(owner.table_.port_of(edges[0]).reader) {
    for (const std::size_t edge : edges) {
      ports_.push_back(&owner.table_.port_of(edge));
      writers_.push_back(owner.table_.edge(edge).writer);
    }
    for (Index i = 0; i < copies(); ++i) {
      for (std::size_t p = 0; p < owner.rows_.size(); ++p) {
        const Rows& rows = owner.rows_[p];
        batch_.segments.push_back({batch_.rows(), static_cast<int>(rows.count), rows.past});
        batch_.key_begin.push_back(i * owner.chunk_.rows + owner.chunk_.segments[p].begin);
        for (int s = 0; s < rows.count; ++s) batch_.positions.push_back(rows.past + s);
        ends_.push_back(batch_.rows() - 1);
        any_past_ |= rows.past > 0;
      }
    }
    batch_.context = owner.context_;
  }

  std::vector<double> run(const RunContext& context) {
    backend::Array x;
    if (reader_ < 0) {
      x = stacked(owner_.pass_.x_final, c_.d_model, true);
      add_changes(x, true);
    } else {
      const Writer& writer = owner_.table_.writers()[reader_];
      layer_ = writer.layer;
      attention_ = writer.kind == WriterKind::head;
      x = stacked(plain(layer_).x_pre, c_.d_model, false);
      const forward::ForwardHooks hooks = make_hooks();
      forward::LayerPass scratch;
      for (int l = layer_; l < c_.n_layers; ++l) {
        context.check();
        forward::run_block(backend_, l, batch_, &hooks, false, x, scratch);
      }
    }
    PromptChunk last;  // one row a prompt of every copy
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      last.members.push_back(owner_.chunk_.members[i % owner_.rows_.size()]);
      last.segments.push_back({static_cast<Index>(i), 1, 0});
    }
    return differences(owner_.model_, owner_.prompts_, last, x);
  }

 private:
  Index copies() const { return ports_.size(); }
  Index kv_row() const { return Index{c_.n_kv_heads} * c_.d_head; }
  Index q_row() const { return Index{c_.n_heads} * c_.d_head; }
  const forward::LayerPass& plain(int layer) const { return owner_.pass_.layers[layer]; }

  // The rows of a copy from those of the chunk; last: the last one of every prompt alone.
  void put(const backend::Array& from, Index width, bool last, Index copy,
           backend::Array& to) const {
    Index at = copy * (last ? std::ssize(owner_.rows_) : owner_.count_);
    for (const Rows& rows : owner_.rows_) {
      const Index count = last ? 1 : rows.count;
      backend_.copy(from, (rows.from + rows.count - count) * width, to, at * width, count * width);
      at += count;
    }
  }

  backend::Array stacked(const backend::Array& from, Index width, bool last) const {
    backend::Array out = backend_.zeros((last ? std::ssize(ends_) : batch_.rows()) * width);
    for (Index i = 0; i < copies(); ++i) put(from, width, last, i, out);
    return out;
  }

  // What each copy's reader sees in place of x.
  void add_changes(backend::Array& x, bool last) const {
    backend::Array change = backend_.zeros(x.size());
    for (Index i = 0; i < copies(); ++i)
      put(owner_.change_[writers_[i]], c_.d_model, last, i, change);
    backend_.add(change, x, x.size());
  }

  Branch branch(Index copy) const { return ports_[copy]->branch; }

  // Of the three inputs of a head one is replaced, of the heads one reads it.
  void keep_plain_inputs(backend::Array& q, backend::Array& k, backend::Array& v) const {
    for (Index i = 0; i < copies(); ++i) {
      if (branch(i) != Branch::K) put(plain(layer_).k, kv_row(), false, i, k);
      if (branch(i) != Branch::Q) put(plain(layer_).q, q_row(), false, i, q);
      if (branch(i) != Branch::V) put(plain(layer_).v, kv_row(), false, i, v);
    }
  }

  void keep_other_heads(backend::Array& z) const {
    backend::Array kept = stacked(plain(layer_).z, q_row(), false);
    for (Index i = 0; i < copies(); ++i) {
      const int reader = ports_[i]->reader;
      const Index head = owner_.table_.writers()[reader].head;
      for (Index r = i * owner_.count_; r < (i + 1) * owner_.count_; ++r) {
        const Index at = r * q_row() + head * c_.d_head;
        backend_.copy(z, at, kept, at, c_.d_head);
      }
    }
    backend_.copy(kept, 0, z, 0, z.size());
  }

  // A gated MLP reads twice.
  void keep_other_side(backend::Array& pre, backend::Array& up) const {
    const bool last = layer_ == c_.n_layers - 1;
    const Index entries = c_.layer(layer_).entries();
    for (Index i = 0; i < copies(); ++i) {
      if (branch(i) == Branch::G) put(plain(layer_).up, entries, last, i, up);
      if (branch(i) == Branch::U) put(plain(layer_).pre, entries, last, i, pre);
    }
  }

  // Keys or values of all rows: what stands before the copies' own is the plain pass's.
  void join(const backend::Array& before, const backend::Array& own, backend::Array& all) const {
    if (all.empty()) all = backend_.zeros(copies() * owner_.chunk_.rows * kv_row());
    for (std::size_t s = 0; s < batch_.segments.size(); ++s) {
      const backend::Segment& segment = batch_.segments[s];
      const Index begin = batch_.key_begin[s], past = segment.past,
                  from = owner_.chunk_.segments[s % owner_.rows_.size()].begin;
      backend_.copy(before, from * kv_row(), all, begin * kv_row(), past * kv_row());
      backend_.copy(own, segment.begin * kv_row(), all, (begin + past) * kv_row(),
                    segment.length * kv_row());
    }
  }

  forward::ForwardHooks make_hooks() {
    forward::ForwardHooks hooks;
    hooks.norm_input = [this](int layer, backend::Sublayer sublayer, const backend::Array& x,
                              backend::Array& changed) {
      if (layer != layer_ || (sublayer == backend::Sublayer::attention) != attention_) return false;
      backend_.copy(x, 0, changed, 0, x.size());
      add_changes(changed, !attention_ && layer == c_.n_layers - 1);
      return true;
    };
    hooks.heads = [this](int layer, backend::Array& q, backend::Array& k, backend::Array& v) {
      if (layer == layer_ && attention_) keep_plain_inputs(q, k, v);
    };
    if (any_past_) {
      hooks.attended = [this](int layer, const backend::Array& k, const backend::Array& v,
                              const backend::Array*& keys, const backend::Array*& values) {
        join(plain(layer).k, k, keys_);
        join(plain(layer).v, v, values_);
        keys = &keys_;
        values = &values_;
      };
    }
    hooks.mixed = [this](int layer, const backend::Array&, const backend::Array&,
                         const backend::Array&, const backend::Array&, backend::Array& z) {
      if (layer == layer_ && attention_) keep_other_heads(z);
    };
    hooks.survivors = [this](int layer) -> std::optional<std::vector<Index>> {
      if (layer + 1 < c_.n_layers) return std::nullopt;
      return ends_;
    };
    hooks.neurons = [this](int layer, const backend::Array&, const backend::Routing*,
                           backend::Array& pre, backend::Array& up) {
      if (layer == layer_ && !attention_) keep_other_side(pre, up);
    };
    return hooks;
  }

  const EdgePatcher& owner_;
  backend::Backend& backend_;
  const ModelConfig& c_;
  int reader_, layer_ = 0;
  bool attention_ = false, any_past_ = false;
  std::vector<const ReaderPort*> ports_;  // [copies]
  std::vector<int> writers_;
  forward::Batch batch_;
  std::vector<Index> ends_;  // the last row of every prompt of every copy
  backend::Array keys_, values_;
};

bool EdgePatcher::fits(const Model& model, const EdgeTable& table) {
  const auto& layers = model.config().layers;
  return !table.placed() && std::none_of(layers.begin(), layers.end(),
                                         [](const LayerConfig& l) { return l.mixture(); });
}

EdgePatcher::EdgePatcher(const Model& model, const EdgeTable& table,
                         const std::vector<TaskPrompt>& prompts, const PromptChunk& chunk,
                         const std::vector<backend::Array>& replaced, bool shared_beginning,
                         const RunContext& context)
    : model_(model), table_(table), prompts_(prompts), chunk_(chunk) {
  backend::Backend& backend = *engine::state_of(model)->backend;
  const WriterRun own = record_writers(model, chunk.prompts, {}, &pass_, context);
  for (std::size_t w = 0; w < replaced.size(); ++w) {
    change_.push_back(backend.zeros(replaced[w].size()));
    backend.copy(replaced[w], 0, change_[w], 0, replaced[w].size());
    backend.add(own.written[w], change_[w], replaced[w].size(), -1.0);
  }
  for (std::size_t p = 0; p < chunk.members.size(); ++p) {
    const std::vector<TokenId>& ids = chunk.prompts[p];
    std::ptrdiff_t same = 0;
    if (shared_beginning) {
      const std::vector<TokenId>& other = prompts[chunk.members[p]].counterfactual;
      same = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end()).first - ids.begin();
    }
    const int past = std::min(static_cast<int>(same), static_cast<int>(ids.size()) - 1);
    rows_.push_back({chunk.segments[p].begin + past, std::ssize(ids) - past, past});
    count_ += rows_.back().count;
    context_ = std::max(context_, static_cast<int>(ids.size()));
  }
}

std::vector<std::vector<std::size_t>> EdgePatcher::groups(
    const std::vector<std::size_t>& edges) const {
  // Few enough that an interrupted search has not much to do again.
  constexpr Index kMost = 16;
  const std::size_t most = std::clamp(chunk_rows(model_) / count_, Index{1}, kMost);
  std::map<std::pair<int, bool>, std::vector<std::vector<std::size_t>>> by_sublayer;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const int reader = table_.port_of(edges[i]).reader;
    std::pair<int, bool> key = {model_.config().n_layers, false};
    if (reader >= 0)
      key = {table_.writers()[reader].layer, table_.writers()[reader].kind == WriterKind::mlp};
    auto& lists = by_sublayer[key];
    if (lists.empty() || lists.back().size() == most) lists.emplace_back();
    lists.back().push_back(i);
  }
  std::vector<std::vector<std::size_t>> out;
  for (auto& [key, lists] : by_sublayer) {
    for (auto& list : lists) out.push_back(std::move(list));
  }
  return out;
}

std::vector<double> EdgePatcher::run(std::span<const std::size_t> edges,
                                     const RunContext& context) const {
  return Copies(*this, edges).run(context);
}

}  // namespace unpack::circuit
