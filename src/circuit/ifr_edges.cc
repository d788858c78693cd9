// Information flow routes carried to writers: every reader shares out what it holds by how near
// each writer is to the stream it sees. The method knows no keys and queries, and one input of an
// MLP.
#include <fmt/format.h>

#include <cmath>

#include "backend/mlp_readers.h"
#include "circuit/rank.h"
#include "decompose/host_math.h"
#include "engine/state.h"

namespace unpack::circuit {

namespace {

using Values = std::vector<double>;

// max(|| whole ||_1 - || whole - scale part ||_1, 0)
double nearness(std::span<const double> whole, const double* part, double scale) {
  double size = 0, rest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    size += std::fabs(whole[i]);
    rest += std::fabs(whole[i] - scale * part[i]);
  }
  return std::max(size - rest, 0.0);
}

void to_shares(Values& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  for (double& v : x) v = sum > 0 ? v / sum : 0.0;
}

// One prompt.
class EdgeRoutes {
 public:
  EdgeRoutes(const Model& model, const EdgeTable& table, const std::vector<TokenId>& ids,
             const RunContext& context)
      : table_(table),
        c_(model.config()),
        backend_(*engine::state_of(model)->backend),
        weights_(*engine::state_of(model)->weights),
        length_(ids.size()),
        d_(c_.d_model) {
    const WriterRun run = record_writers(model, {ids}, {}, &pass_, context);
    for (const backend::Array& rows : run.written)
      written_.push_back(decompose::fetch(backend_, rows));
  }

  Values edges() {
    const Writers& writers = table_.writers();
    credit_.assign(table_.size(), 0.0);
    held_.assign(written_.size(), Values(length_, 0.0));
    share(table_.target_port(), length_ - 1, 1.0);
    for (int l = c_.n_layers - 1; l >= 0; --l) {
      // A gated MLP's gate stands for all that it reads.
      const std::size_t port = table_.mlp_ports(l) + backend::gate_index(c_.layer(l));
      for (std::size_t s = 0; s < length_; ++s) share(port, s, held_[writers.mlp(l)][s]);
      for (int h = 0; h < c_.n_heads; ++h) share_head(l, h);
    }
    return credit_;
  }

 private:
  void share(std::size_t port_index, std::size_t s, double amount) {
    if (amount == 0) return;
    const ReaderPort& port = table_.ports()[port_index];
    const std::size_t visible = port.visible;
    Values whole(d_, 0.0), part;
    for (std::size_t w = 0; w < visible; ++w) {
      for (std::size_t i = 0; i < d_; ++i) whole[i] += written_[w][s * d_ + i];
    }
    for (std::size_t w = 0; w < visible; ++w)
      part.push_back(nearness(whole, written_[w].data() + s * d_, 1));
    to_shares(part);
    for (std::size_t w = 0; w < visible; ++w) {
      credit_[table_.place(s) + port.first + w] += amount * part[w];
      held_[w][s] += amount * part[w];
    }
  }

  // First over the sources that the head mixed, then over those who wrote there.
  void share_head(int l, int h) {
    const std::size_t writer = table_.writers().head(l, h);
    const forward::LayerPass& layer = pass_.layers[l];
    const Values pattern = decompose::fetch(backend_, layer.pattern),
                 v = decompose::fetch(backend_, layer.v),
                 dev = decompose::fetch(backend_, layer.attn_out_dev);
    const std::size_t group = h / c_.group_size();
    const std::size_t e = c_.d_head;
    const std::size_t groups = c_.n_kv_heads;
    Values alone(length_ * c_.n_heads * e, 0.0), out(length_ * d_);
    for (std::size_t s = 0; s < length_; ++s) {
      for (std::size_t i = 0; i < e; ++i)
        alone[(s * c_.n_heads + h) * e + i] = v[(s * groups + group) * e + i];
    }
    const model::LayerWeights& weights = weights_.layers[l];
    decompose::linear(weights[model::Role::w_o], alone, out, length_);
    if (const Values post = decompose::fetch(weights[model::Role::attn_post_w]); !post.empty()) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] *= post[i % d_];
    }
    const std::size_t pairs = backend::tri(length_);
    const std::size_t port = table_.attention_ports(l) + 3 * h + 2;
    for (std::size_t q = 0; q < length_; ++q) {
      const double amount = held_[writer][q];
      if (amount == 0) continue;
      const std::span<const double> whole(written_[writer].data() + q * d_, d_);
      const double* alpha = pattern.data() + h * pairs + q * (q + 1) / 2;
      Values sources;
      for (std::size_t s = 0; s <= q; ++s)
        sources.push_back(
            nearness(whole, out.data() + s * d_, dev.empty() ? alpha[s] : alpha[s] / dev[q]));
      to_shares(sources);
      for (std::size_t s = 0; s <= q; ++s) share(port, s, amount * sources[s]);
    }
  }

  const EdgeTable& table_;
  const ModelConfig& c_;
  backend::Backend& backend_;
  const model::ModelWeights& weights_;
  std::size_t length_, d_;
  forward::ForwardPass pass_;
  std::vector<Values> written_, held_;
  Values credit_;
};

}  // namespace

EdgeScores rank_ifr(const Model& model, const EdgeTable& table, const Task& task,
                    const RunContext& context, CircuitMemory* memory) {
  EdgeScores scores;
  const double prompts = task.prompts.size();
  for (std::size_t i = 0; i < task.prompts.size(); ++i) {
    context.report("prompts", i, prompts);
    add_scores(
        scores,
        recalled(memory, fmt::format("ifr {}", i),
                 [&] { return EdgeRoutes(model, table, task.prompts[i].ids, context).edges(); }),
        prompts);
    scores.passes += 1;
  }
  return scores;
}

}  // namespace unpack::circuit
