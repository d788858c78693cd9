#include "circuit/ablation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "backend/mlp_readers.h"
#include "base/index.h"
#include "circuit/memory.h"
#include "circuit/patch_edges.h"
#include "engine/state.h"
#include "forward/block.h"
#include "unpack/error.h"

namespace unpack::circuit {

namespace {

// One pass over one chunk. Readers that keep the same writers see the same input, which is made
// once.
class AblatedPass {
 public:
  AblatedPass(const Model& model, const EdgeTable& table, const PromptChunk& chunk,
              const std::vector<backend::Array>& replaced, const EdgeMask& kept)
      : backend_(*engine::state_of(model)->backend),
        c_(model.config()),
        table_(table),
        writers_(table.writers()),
        chunk_(chunk),
        replaced_(replaced),
        kept_(kept),
        change_(replaced.size()) {
    for (const backend::Segment& segment : chunk.segments) {
      for (int s = 0; s < segment.length; ++s) positions_.push_back(s);
      context_ = std::max(context_, segment.length);
      key_begin_.push_back(segment.begin);
    }
  }

  // The final stream as the target sees it. `base`: what all passes share before layer `first`.
  backend::Array run(const PassStart* base, int first, PassStart* keep, const RunContext& context) {
    if (base != nullptr) {
      const std::size_t before = writers_.first_of_layer(first);
      for (std::size_t w = 0; w < before; ++w) change_[w] = base->changes[w];
    }
    keep_ = keep;
    find_changes(first);
    if (keep_ != nullptr) keep_->streams.assign(c_.n_layers + 1, {});
    const forward::ForwardHooks hooks = make_hooks(base == nullptr);
    forward::ForwardOptions options;
    options.keep = false;
    options.hooks = &hooks;
    options.first_layer = first;
    if (base != nullptr) options.start = &base->streams[first];
    const backend::Array x = forward::forward(backend_, chunk_.prompts, options, context).x_final;
    if (keep_ != nullptr) {
      keep_->streams.back() = copied(x);
      keep_->changes = change_;
    }
    read_inputs(table_.target_port(), 1, x);
    return inputs_[0];
  }

  double inputs() const { return made_; }

 private:
  Index size() const { return chunk_.rows * c_.d_model; }

  backend::Array copied(const backend::Array& from) {
    backend::Array to = backend_.zeros(from.size());
    backend_.copy(from, 0, to, 0, from.size());
    return to;
  }

  // Writers that some reader from `first` on does not keep. Of the others nobody asks how they
  // changed: a pass with few edges removed costs little more than a plain one.
  void find_changes(int first) {
    asked_.assign(change_.size(), keep_ != nullptr);
    for (std::size_t p = table_.attention_ports(first); p < table_.ports().size(); ++p) {
      const ReaderPort& port = table_.ports()[p];
      for (std::size_t s = 0; s < table_.positions(); ++s)
        for (std::size_t w = 0; w < static_cast<std::size_t>(port.visible); ++w)
          if (kept_[s * table_.stride() + port.first + w] == 0) asked_[w] = 1;
    }
  }

  bool asked(int writer) const { return asked_[writer] != 0; }

  void wrote(int writer, const backend::Array& rows) {
    if (!asked(writer)) return;
    const std::size_t w = writer;
    change_[w] = copied(replaced_[w]);
    backend_.add(rows, change_[w], size(), -1.0);
  }

  // The inputs of `count` ports from `first` on, of which those that keep the same writers share
  // one.
  void read_inputs(std::size_t first, std::size_t count, const backend::Array& x) {
    inputs_.clear();
    input_of_.assign(count, 0);
    const std::size_t visible = table_.ports()[first].visible;
    std::map<EdgeMask, std::size_t> known;
    backend::Array ablated;
    for (std::size_t p = 0; p < count; ++p) {
      EdgeMask key;  // [positions, visible]
      for (std::size_t s = 0; s < table_.positions(); ++s) {
        const auto begin = kept_.begin() + (s * table_.stride() + table_.ports()[first + p].first);
        key.insert(key.end(), begin, begin + visible);
      }
      const auto [found, fresh] = known.try_emplace(key, inputs_.size());
      input_of_[p] = found->second;
      if (fresh) inputs_.push_back(make_input(key, visible, x, ablated));
    }
    made_ += inputs_.size();
  }

  backend::Array make_input(const EdgeMask& key, std::size_t visible, const backend::Array& x,
                            backend::Array& ablated) {
    const std::size_t kept = count_kept(key);
    if (kept == key.size()) return copied(x);
    // From whichever end is nearer: the stream as it is, or the stream with nothing kept.
    const bool from_clean = 2 * kept > key.size();
    if (!from_clean && ablated.empty()) {
      ablated = copied(x);
      for (std::size_t w = 0; w < visible; ++w)
        if (asked_[w] != 0) backend_.add(change_[w], ablated, size());
    }
    backend::Array out = copied(from_clean ? x : ablated);
    for (std::size_t w = 0; w < visible; ++w) {
      if (asked_[w] == 0) continue;
      std::vector<char> turned;  // [positions]
      for (std::size_t at = w; at < key.size(); at += visible)
        turned.push_back((key[at] != 0) != from_clean);
      const std::size_t count = count_kept(turned);
      if (count == 0) continue;
      backend_.add(count == turned.size() ? change_[w] : rows_of(change_[w], turned), out, size(),
                   from_clean ? 1.0 : -1.0);
    }
    return out;
  }

  // The rows of the positions that are asked for, and nothing elsewhere.
  backend::Array rows_of(const backend::Array& from, const std::vector<char>& positions) {
    backend::Array out = backend_.zeros(from.size());
    for (const backend::Segment& segment : chunk_.segments) {
      for (Index s = 0; s < segment.length; ++s) {
        if (positions[s] == 0) continue;
        const Index at = (segment.begin + s) * c_.d_model;
        backend_.copy(from, at, out, at, c_.d_model);
      }
    }
    return out;
  }

  forward::ForwardHooks make_hooks(bool from_the_beginning) {
    forward::ForwardHooks hooks;
    if (from_the_beginning) {
      hooks.embeddings = [this](backend::Array& emb) { wrote(0, emb); };
      hooks.positions = [this](backend::Array& pos) { wrote(1, pos); };
    }
    hooks.norm_input = [this](int layer, backend::Sublayer sublayer, const backend::Array& x,
                              backend::Array& changed) {
      const bool attention = sublayer == backend::Sublayer::attention;
      if (attention && keep_ != nullptr) keep_->streams[layer] = copied(x);
      if (attention) {
        read_inputs(table_.attention_ports(layer), 3 * c_.n_heads, x);
      } else {
        read_inputs(table_.mlp_ports(layer), backend::mlp_readers(c_.layer(layer)).size(), x);
      }
      backend_.copy(inputs_[0], 0, changed, 0, size());
      return true;
    };
    hooks.mixed = [this](int layer, const backend::Array&, const backend::Array&,
                         const backend::Array&, const backend::Array&, backend::Array& z) {
      if (inputs_.size() > 1) mix_heads(layer, z);
    };
    hooks.heads_written = [this](int layer, const backend::Array& z, const backend::Array& dev) {
      for (int h = 0; h < c_.n_heads; ++h)
        if (asked(writers_.head(layer, h)))
          wrote(writers_.head(layer, h),
                forward::write_head(backend_, layer, z, dev, h, chunk_.rows));
    };
    hooks.neurons = [this](int layer, const backend::Array&, const backend::Routing* routing,
                           backend::Array& pre,
                           backend::Array& up) { read_neurons(layer, routing, pre, up); };
    hooks.mlp_written = [this](int layer, backend::Array& out) { wrote(writers_.mlp(layer), out); };
    return hooks;
  }

  // z of heads whose keys, queries and values come from inputs of their own.
  void mix_heads(int layer, backend::Array& z) {
    const Index count = inputs_.size();
    const Index rows = chunk_.rows, all = count * rows, d = c_.d_model, e = c_.d_head,
                heads = c_.n_heads, groups = c_.n_kv_heads;
    backend::Array stacked = backend_.zeros(all * d);
    std::vector<int> positions;
    for (Index i = 0; i < count; ++i) {
      backend_.copy(inputs_[i], 0, stacked, i * rows * d, rows * d);
      positions.insert(positions.end(), positions_.begin(), positions_.end());
    }
    forward::LayerPass read;
    forward::read_heads(backend_, layer, stacked, positions, context_, read);
    // Heads of a group have one key head in the weights and may yet see different inputs: one
    // attention a member.
    const int members = c_.group_size();
    backend::Array own_q = backend_.zeros(rows * heads * e),
                   own_k = backend_.zeros(rows * groups * e),
                   own_v = backend_.zeros(rows * groups * e),
                   own_z = backend_.zeros(rows * heads * e);
    const auto input = [&](Index head, std::size_t branch) {
      return static_cast<Index>(input_of_[head * 3 + branch]);
    };
    const auto take = [&](const backend::Array& from, Index at, Index heads_there, Index head,
                          backend::Array& to) {
      for (Index r = 0; r < rows; ++r)
        backend_.copy(from, ((at * rows + r) * heads_there + head) * e, to,
                      (r * heads_there + head) * e, e);
    };
    for (Index h = 0; h < heads; ++h) take(read.q, input(h, 1), heads, h, own_q);
    for (int member = 0; member < members; ++member) {
      for (Index g = 0; g < groups; ++g) {
        take(read.k, input(g * members + member, 0), groups, g, own_k);
        take(read.v, input(g * members + member, 2), groups, g, own_v);
      }
      backend::Array& to = members == 1 ? z : own_z;
      forward::mix_heads(backend_, layer, own_q, own_k, own_v, chunk_.segments, key_begin_, to);
      if (members == 1) return;
      for (Index g = 0; g < groups; ++g) take(own_z, 0, heads, g * members + member, z);
    }
  }

  // The first reader's input is what the block itself has read; the others are read here.
  void read_neurons(int layer, const backend::Routing* routing, backend::Array& pre,
                    backend::Array& up) {
    const std::vector<backend::MlpReader> readers = backend::mlp_readers(c_.layer(layer));
    for (std::size_t i = 1; i < readers.size(); ++i) {
      if (input_of_[i] == 0) continue;
      forward::read_neurons(backend_, layer, readers[i].side, inputs_[input_of_[i]], chunk_.rows,
                            routing, readers[i].side == backend::MlpSide::up ? up : pre);
    }
  }

  backend::Backend& backend_;
  const ModelConfig& c_;
  const EdgeTable& table_;
  const Writers& writers_;
  const PromptChunk& chunk_;
  const std::vector<backend::Array>& replaced_;
  const EdgeMask& kept_;
  std::vector<backend::Array> change_;  // [C] what is replaced less what was written
  std::vector<char> asked_;             // [C] whether any reader wants to know that
  PassStart* keep_ = nullptr;
  std::vector<int> positions_;
  std::vector<Index> key_begin_;
  int context_ = 0;
  std::vector<backend::Array> inputs_;  // different ones of the sublayer at work
  std::vector<std::size_t> input_of_;   // which of them a port sees
  double made_ = 0;
};

}  // namespace

CircuitRunner::CircuitRunner(const Model& model, const EdgeTable& table,
                             const std::vector<TaskPrompt>& prompts, EdgeAblation ablation,
                             const RunContext& context, CircuitMemory* memory)
    : model_(model), table_(table), prompts_(prompts), ablation_(ablation), memory_(memory) {
  for (PromptChunk& chunk : cut_chunks(model.config(), prompts, chunk_rows(model)))
    parts_.push_back({std::move(chunk), {}});
  make_replacements(prompts, ablation, context);
}

void CircuitRunner::make_replacements(const std::vector<TaskPrompt>& prompts, EdgeAblation ablation,
                                      const RunContext& context) {
  backend::Backend& backend = *engine::state_of(model_)->backend;
  const std::size_t count = model_.writers().count();
  const std::size_t d = model_.config().d_model;
  std::vector<std::vector<double>> mean(count, std::vector<double>(d, 0.0));
  double rows = 0;
  for (Part& part : parts_) {
    const WriterRun own = record_writers(model_, part.chunk.prompts, context);
    for (const double value : differences(model_, prompts, part.chunk, own.streams.back()))
      clean_.push_back(value);
    if (ablation == EdgeAblation::counterfactual) {
      std::vector<std::vector<TokenId>> others;
      for (const std::size_t i : part.chunk.members) others.push_back(prompts[i].counterfactual);
      part.replaced = record_writers(model_, others, context).written;
    } else if (ablation == EdgeAblation::zero) {
      part.replaced.assign(count, backend.zeros(part.chunk.rows * d));
    } else {
      std::vector<double> values(part.chunk.rows * d);
      for (std::size_t w = 0; w < count; ++w) {
        backend.download(own.written[w], 0, values);
        for (std::size_t i = 0; i < values.size(); ++i) mean[w][i % d] += values[i];
      }
      rows += part.chunk.rows;
    }
  }
  if (ablation != EdgeAblation::mean) return;
  for (Part& part : parts_) {
    for (std::size_t w = 0; w < count; ++w) {
      std::vector<double> values(part.chunk.rows * d);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = mean[w][i % d] / rows;
      part.replaced.push_back(backend.zeros(std::ssize(values)));
      backend.upload(part.replaced.back(), 0, values);
    }
  }
}

std::vector<double> CircuitRunner::run(const Part& part, const EdgeMask& kept,
                                       const PassStart* base, int first, PassStart* keep,
                                       const RunContext& context) {
  AblatedPass pass(model_, table_, part.chunk, part.replaced, kept);
  std::vector<double> values =
      differences(model_, prompts_, part.chunk, pass.run(base, first, keep, context));
  values.push_back(pass.inputs());
  return values;
}

// Counts what a pass from layer `first` on has cost; its differences go to `out`.
void CircuitRunner::take(std::vector<double> values, int first, std::vector<double>& out) {
  const double inputs = values.back(), prompts = values.size() - 1;
  passes_ += prompts;
  inputs_ += prompts * inputs;
  plain_inputs_ += prompts * (2.0 * (model_.config().n_layers - first) + 1);
  out.insert(out.end(), values.begin(), values.end() - 1);
}

std::string CircuitRunner::name_of(const char* what, const Part& part, const EdgeMask& kept) const {
  return fmt::format("{} {} {} {}", what, prompts_.size(), part.chunk.members[0],
                     short_name(kept.data(), kept.size()));
}

std::vector<double> CircuitRunner::measure(const EdgeMask& kept, const RunContext& context) {
  std::vector<double> out;
  for (const Part& part : parts_)
    take(recalled(memory_, name_of("pass", part, kept),
                  [&] { return run(part, kept, nullptr, 0, nullptr, context); }),
         0, out);
  return out;
}

int CircuitRunner::first_layer(std::size_t edge) const {
  const int reader = table_.port_of(edge).reader;
  return reader < 0 ? model_.config().n_layers : table_.writers()[reader].layer;
}

void CircuitRunner::patch_each(const Part& part, const std::vector<std::size_t>& edges,
                               const std::string& name, const RunContext& context,
                               std::vector<std::vector<double>>& out) {
  const EdgePatcher patcher(model_, table_, prompts_, part.chunk, part.replaced,
                            ablation_ == EdgeAblation::counterfactual, context);
  const std::size_t prompts = part.chunk.members.size();
  std::vector<double> plain(prompts + 1, 0.0), ignored;
  plain.back() = 2.0 * model_.config().n_layers + 1;
  take(plain, 0, ignored);
  std::size_t done = 0;
  for (const std::vector<std::size_t>& group : patcher.groups(edges)) {
    context.report("edges", done, edges.size());
    done += group.size();
    std::vector<std::size_t> some;
    some.reserve(group.size());
    for (const std::size_t i : group) some.push_back(edges[i]);
    std::vector<double> together;  // made where one of them is not known yet
    for (std::size_t k = 0; k < group.size(); ++k) {
      const int first = first_layer(some[k]);
      const auto one = [&] {
        if (together.empty()) together = patcher.run(some, context);
        const auto begin = together.begin() + (k * prompts);
        std::vector<double> values(begin, begin + prompts);
        // What readers are given, and once more where others of the sublayer see something else.
        const Branch branch = table_.port_of(some[k]).branch;
        values.push_back(2.0 * (model_.config().n_layers - first) + 1 +
                         (branch != Branch::none && branch != Branch::mlp ? 1 : 0));
        return values;
      };
      take(recalled(memory_, fmt::format("{} {}", name, some[k]), one), first, out[group[k]]);
    }
  }
}

std::vector<std::vector<double>> CircuitRunner::measure_without(
    const EdgeMask& kept, const std::vector<std::size_t>& edges, const RunContext& context) {
  std::vector<std::vector<double>> out(edges.size());
  const bool alone = count_kept(kept) == kept.size() && EdgePatcher::fits(model_, table_);
  std::size_t done = 0;
  for (const Part& part : parts_) {
    const std::string name = name_of("without", part, kept);
    if (alone) {
      patch_each(part, edges, name, context, out);
      continue;
    }
    PassStart base;
    const auto run_base = [&] { return run(part, kept, nullptr, 0, &base, context); };
    std::vector<double> whole;
    take(recalled(memory_, name_of("base", part, kept), run_base), 0, whole);
    EdgeMask fewer = kept;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      context.report("edges", done++, edges.size() * parts_.size());
      const int first = first_layer(edges[i]);
      take(recalled(memory_, fmt::format("{} {}", name, edges[i]),
                    [&] {
                      if (base.streams.empty()) run_base();
                      fewer[edges[i]] = 0;
                      std::vector<double> values = run(part, fewer, &base, first, nullptr, context);
                      fewer[edges[i]] = kept[edges[i]];
                      return values;
                    }),
           first, out[i]);
    }
  }
  return out;
}

}  // namespace unpack::circuit
