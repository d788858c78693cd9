#include "unpack/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "backend/device_memory.h"
#include "backend/mlp_readers.h"
#include "backend/rotary.h"
#include "base/index.h"
#include "engine/finite.h"
#include "engine/plan.h"
#include "engine/state.h"
#include "engine/sums.h"
#include "forward/check_finite.h"
#include "forward/forward.h"

namespace unpack {

namespace {

constexpr Index kBatchRows = 1024;
constexpr std::size_t kKeptLogits = 8;

}  // namespace

// Asking the device takes time that a short prompt does not have.
bool engine::goes_by_layer(const engine::ModelState& state, int tokens, const RunContext& context) {
  constexpr double kAlwaysFits = Index{1} << 30, kGiB = Index{1} << 30;
  backend::DeviceMemory* memory = state.backend->device_memory();
  if (memory == nullptr) return false;
  const ModelConfig& c = state.backend->config();
  const bool may = engine::may_go_by_layer(*state.backend);
  if (const char* forced = std::getenv("UNPACK_CUDA_BY_LAYER"); may && forced != nullptr)
    return std::string_view(forced) == "1";
  const double need = engine::device_memory_cost(c, state.writers, tokens, context.memory_budget,
                                                 memory->in_parts());
  if (need <= kAlwaysFits) return false;
  const double room = memory->room_for_prompts();
  if (need <= room) return false;
  const auto least = [&](int length) {
    return may ? engine::by_layer_memory_cost(c, state.writers, length, memory->in_parts())
               : engine::device_memory_cost(c, state.writers, length, context.memory_budget,
                                            memory->in_parts());
  };
  if (may && least(tokens) <= room) return true;
  const int fits = engine::longest_prompt(c, room, least);
  throw InputError(fmt::format(
      "a prompt of {} tokens takes {:.1f} GiB of the device{}, which has {:.1f} GiB for it; {}",
      tokens, least(tokens) / kGiB, may ? ", layer by layer" : "", room / kGiB,
      fits > 0 ? fmt::format("{} tokens would fit, or use device cpu", fits)
               : "use a smaller model or device cpu"));
}

std::vector<Prepared> Model::prepare(const std::vector<std::vector<TokenId>>& prompts,
                                     const RunContext& context) const {
  std::vector<Prepared> out;
  std::size_t next = 0;
  std::vector<bool> by_layer;
  for (const auto& prompt : prompts) {
    forward::check_prompt(config(), prompt);
    by_layer.push_back(engine::goes_by_layer(*state_, prompt.size(), context));
  }
  while (next < prompts.size()) {
    std::vector<std::vector<TokenId>> batch;
    Index rows = 0;
    forward::ForwardOptions how;
    how.lean = by_layer[next];
    while (next < prompts.size() &&
           (batch.empty() ||
            (!how.lean && !by_layer[next] && rows + std::ssize(prompts[next]) <= kBatchRows &&
             backend::same_rotary(config(), batch.front().size(), prompts[next].size())))) {
      rows += std::ssize(prompts[next]);
      batch.push_back(prompts[next++]);
    }
    const forward::ForwardPass pass =
        forward::forward_unchecked(*state_->backend, batch, how, context);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      auto decomposition = std::make_shared<decompose::Decomposition>(
          state_->backend, state_->writers,
          batch.size() == 1 ? pass : forward::slice_prompt(*state_->backend, pass, i), context,
          how.lean);
      out.push_back(engine::Inside::prepared(
          std::make_shared<const engine::PreparedState>(*this, std::move(decomposition))));
    }
    // Only now, with all work of the batch on its way: a device need not wait in between.
    forward::check_finite(*state_->backend, pass);
  }
  return out;
}

Prepared Model::prepare(std::span<const TokenId> ids, const RunContext& context) const {
  return prepare(std::vector<std::vector<TokenId>>{{ids.begin(), ids.end()}}, context).front();
}

void engine::make_sums(const engine::PreparedState& state, Options options,
                       const RunContext& context) {
  const decompose::Decomposition& d = *state.decomposition;
  (void)options.settle();
  if (d.by_layer()) return;  // which keeps none
  d.begin(options, context);
  // Of a long prompt the sums are made along with the edges, for what its keys lead to.
  if (options.direction == Direction::output && !d.keeps_key_scores(options.scores) &&
      options.scores == Scores::raw)
    return engine::make_edges(state, options, context);
  d.attention(0, options.scores, context);
  if (options.direction == Direction::read) {
    if (options.keys == Keys::spread) d.key_medians(0, context);
  } else if (d.keeps_key_scores()) {  // otherwise these are made where they are used
    d.head_numerators(0);
    d.mlp_numerators(0);
  }
}

std::shared_ptr<const std::vector<double>> engine::PreparedState::logits_at(int position) const {
  {
    std::lock_guard lock(mutex);
    for (const auto& [at, row] : logits) {
      if (at == position) return row;
    }
  }
  auto row = std::make_shared<std::vector<double>>();
  const std::vector<Index> rows = {position};
  backend().logits(decomposition->kept_pass().x_final, rows, *row);
  std::lock_guard lock(mutex);
  if (logits.size() >= kKeptLogits) logits.erase(logits.begin());
  logits.emplace_back(position, row);
  return row;
}

std::size_t Prepared::bytes() const {
  const decompose::Decomposition& d = *state_->decomposition;
  const ModelConfig& c = d.config();
  const std::size_t scalar = d.backend().is_double() ? 8 : 4;
  const auto size = [](Index n) { return static_cast<std::size_t>(n); };
  const Index s = d.length();
  Index edges = 0;  // values of one set
  for (int l = 0; l < c.n_layers; ++l) {
    edges += 2 * backend::tri(s) * c.n_heads +
             s * d.writers().visible_to_attention(l) * (c.n_heads + c.n_kv_heads) +
             s * backend::neuron_sides(c) * d.writers().visible_to_mlp(l);
  }
  // Masses and bounds below every node, in double.
  const Index suffix = 4 * s * d.writers().count();
  // Layer by layer nothing of pairs stays.
  if (d.by_layer()) edges -= 2 * backend::tri(s) * c.n_heads * c.n_layers;
  std::lock_guard lock(state_->mutex);
  const std::size_t sets = state_->float_edges.size() + state_->double_edges.size();
  return d.bytes() + sets * (size(edges) * scalar + size(suffix) * sizeof(double)) +
         state_->logits.size() * size(c.vocab_size) * sizeof(double);
}

const Model& Prepared::model() const { return state_->model; }
const std::vector<TokenId>& Prepared::ids() const { return state_->decomposition->kept_pass().ids; }

InteractionResult Prepared::interactions(std::optional<int> query, bool all,
                                         const RunContext& context) const {
  const decompose::Decomposition& d = *state_->decomposition;
  const Writers& writers = d.writers();
  const int length = d.length();
  const auto alone = d.alone();
  InteractionResult result;
  result.model = model().info();
  result.tokens = model().tokens(ids());
  for (int w = 0; w < writers.count(); ++w) result.writers.push_back(writers.name(w));
  result.per_query = all || query.has_value();
  const int only = query ? resolve_position(*query, length) : -1;
  // values[S, n] of one reader: one query, every query, or their mean.
  const auto read = [&](const double* values, int n, int reader, std::vector<Interaction>& out) {
    for (int q = 0; q < length; ++q) {
      if (!result.per_query || (query && q != only)) continue;
      for (int j = 0; j < n; ++j)
        out.push_back({reader, q, j, values[static_cast<std::size_t>(q) * n + j]});
    }
    if (result.per_query) return;
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int q = 0; q < length; ++q) sum += values[static_cast<std::size_t>(q) * n + j];
      out.push_back({reader, -1, j, sum / length});
    }
  };
  for (int l = 0; l < d.config().n_layers; ++l) {
    const int cl = writers.visible_to_attention(l);
    const int cm = writers.visible_to_mlp(l);
    const backend::Array deviation = d.by_layer()
                                         ? d.backend().key_moments(d.attention_view(l)).k_std
                                         : d.moments(l, context).k_std;
    std::vector<double> values(deviation.size());
    d.backend().download(deviation, 0, values);
    for (int h = 0; h < d.config().n_heads; ++h) {
      read(values.data() + static_cast<std::size_t>(h) * length * cl, cl, writers.head(l, h),
           result.attention);
    }
    const backend::Array l2 = d.mlp_norms(l, backend::MlpSide::gate, context);
    values.resize(l2.size());
    d.backend().download(l2, 0, values);
    read(values.data(), cm, writers.mlp(l), result.mlp);
  }
  engine::check_finite(result);
  return result;
}

CachedArray Prepared::scores(int layer, Branch branch) const {
  const decompose::Decomposition& d = *state_->decomposition;
  const ModelConfig& c = d.config();
  if (layer < 0 || layer >= c.n_layers)
    throw InputError(fmt::format("layer {} does not exist: the model has layers 0 to {}", layer,
                                 c.n_layers - 1));
  const auto alone = d.alone();
  const Index length = d.length();
  CachedArray out;
  const auto put = [&](Index index, double value) { out.values[index] = value; };
  if (branch == Branch::K || branch == Branch::Q) {
    const backend::AttentionView view = d.attention_view(layer);
    const Index cl = view.visible;
    out.shape = {cl, c.n_heads, length, length};
    out.values.assign(cl * c.n_heads * length * length, 0.0);
    backend::Array rows = d.backend().zeros(length * cl);
    std::vector<double> values(length * cl);
    for (int h = 0; h < c.n_heads; ++h) {
      for (int q = 0; q < length; ++q) {
        if (branch == Branch::K) {
          d.backend().key_scores(view, Scores::raw, h, q, rows);
        } else {
          d.backend().query_scores(view, Scores::raw, h, q, rows);
        }
        d.backend().download(rows, 0, values);
        for (Index s = 0; s <= q; ++s) {
          for (Index j = 0; j < cl; ++j)
            put(((j * c.n_heads + h) * length + q) * length + s, values[s * cl + j]);
        }
      }
    }
    return out;
  }
  if (branch == Branch::V) {
    const backend::AttentionSums& sums = d.attention(layer, Scores::raw);
    const Index cl = d.writers().visible_to_attention(layer);
    std::vector<double> values(sums.v_scores.size());
    d.backend().download(sums.v_scores, 0, values);
    out.shape = {cl, c.n_heads, length};
    out.values.assign(cl * c.n_heads * length, 0.0);
    for (int h = 0; h < c.n_heads; ++h) {
      for (Index s = 0; s < length; ++s) {
        for (Index j = 0; j < cl; ++j)
          put((j * c.n_heads + h) * length + s, values[(h / c.group_size() * length + s) * cl + j]);
      }
    }
    return out;
  }
  const LayerConfig& shape = c.layer(layer);
  std::optional<backend::MlpSide> side;
  std::string names;
  for (const backend::MlpReader& reader : backend::mlp_readers(shape)) {
    if (reader.branch == branch) side = reader.side;
    names += fmt::format(", {}", to_string(reader.branch));
  }
  if (!side)
    throw UsageError(
        fmt::format("branch '{}' does not exist here: use K, Q, V{}", to_string(branch), names));
  const backend::MlpView view = d.mlp_view(layer);
  const Index cm = view.visible;
  const Index n = backend::reader_entries(shape, *side);
  // Of a mixture every expert has its place, with 0 where a position does not use it.
  const Index each = shape.mixture() ? n / shape.experts_per_token : n;
  const Index all = shape.mixture() ? each * shape.n_experts : n;
  const auto place = [&](Index q, Index i) {
    return shape.mixture() ? view.routing->expert[view.routing->slot(q, i / each)] * each + i % each
                           : i;
  };
  out.shape = {cm, length, all};
  out.values.assign(cm * length * all, 0.0);
  backend::Array rows = d.backend().zeros(cm * n);
  std::vector<double> values(cm * n);
  for (int q = 0; q < length; ++q) {
    d.backend().mlp_scores(view, *side, Scores::raw, q, rows);
    d.backend().download(rows, 0, values);
    for (Index j = 0; j < cm; ++j) {
      for (Index i = 0; i < n; ++i) put((j * length + q) * all + place(q, i), values[j * n + i]);
    }
  }
  return out;
}

CachedArray Prepared::cache(const std::string& name, int layer) const {
  const decompose::Decomposition& d = *state_->decomposition;
  const ModelConfig& c = d.config();
  const forward::ForwardPass& t = d.pass();
  const Index length = d.length();
  const auto take = [&](const backend::Array& a, std::vector<Index> shape) {
    CachedArray out;
    out.shape = std::move(shape);
    out.values.resize(a.size());
    d.backend().download(a, 0, out.values);
    return out;
  };
  if (name == "embed") return take(t.emb, {length, c.d_model});
  if (name == "pos_embed" && c.has_pos_writer()) return take(t.pos, {length, c.d_model});
  if (name == "resid_final") return take(t.x_final, {length, c.d_model});
  if (name == "logits") {
    CachedArray out;
    out.shape = {length, c.vocab_size};
    std::vector<Index> rows(length);
    std::iota(rows.begin(), rows.end(), 0);
    d.backend().logits(t.x_final, rows, out.values);
    return out;
  }
  if (layer < 0 || layer >= c.n_layers)
    throw InputError(fmt::format("layer {} does not exist: the model has layers 0 to {}", layer,
                                 c.n_layers - 1));
  const forward::LayerPass& l = t.layers[layer];
  if (name == "resid_pre") return take(l.x_pre, {length, c.d_model});
  if (name == "resid_mid") return take(l.x_mid, {length, c.d_model});
  if (name == "resid_post")
    return layer + 1 < c.n_layers ? take(t.layers[layer + 1].x_pre, {length, c.d_model})
                                  : take(t.x_final, {length, c.d_model});
  if (name == "attn_out") return take(l.attn_out, {length, c.d_model});
  if (name == "mlp_out") return take(l.mlp_out, {length, c.d_model});
  if (name == "ln1_scale") return take(l.dev_attn, {length});
  if (name == "ln2_scale") return take(l.dev_mlp, {length});
  if (name == "q") return take(l.q, {length, c.n_heads, c.d_head});
  if (name == "k") return take(l.k, {length, c.n_kv_heads, c.d_head});
  if (name == "v") return take(l.v, {length, c.n_kv_heads, c.d_head});
  if (name == "z") return take(l.z, {length, c.n_heads, c.d_head});
  const LayerConfig& shape = c.layer(layer);
  if (name == "pre") return take(l.pre, {length, shape.entries()});
  if (name == "up" && shape.gated()) return take(l.up, {length, shape.entries()});
  if (name == "post") return take(l.act, {length, shape.entries()});
  if (name == "pattern") {
    const CachedArray packed = take(l.pattern, {});
    CachedArray out;
    out.shape = {c.n_heads, length, length};
    out.values.assign(c.n_heads * length * length, 0.0);
    for (Index h = 0; h < c.n_heads; ++h) {
      for (Index q = 0; q < length; ++q) {
        for (Index s = 0; s <= q; ++s) {
          out.values[(h * length + q) * length + s] =
              packed.values[h * backend::tri(length) + backend::tri(q) + s];
        }
      }
    }
    return out;
  }
  throw InputError(
      fmt::format("'{}' is not kept: use embed, pos_embed, resid_pre, resid_mid, resid_post, "
                  "resid_final, q, k, v, pattern, z, attn_out, pre, up, "
                  "post, mlp_out, ln1_scale, ln2_scale or logits",
                  name));
}

}  // namespace unpack
