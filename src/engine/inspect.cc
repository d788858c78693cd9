#include "unpack/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "base/center.h"
#include "base/index.h"
#include "engine/state.h"

namespace unpack {

namespace {

std::size_t index(Index i) { return i; }

// Vectors through the unembedding as it stands at one position of the prompt.
class Unembedding {
 public:
  Unembedding(const Prepared& prepared, int position)
      : model_(prepared.model()),
        backend_(engine::state_of(prepared)->backend()),
        x_(engine::state_of(prepared)->decomposition->pass().x_final),
        row_(position),
        width_(index(backend_.config().d_model)) {
    // The mean over the vocabulary comes with a direction against it.
    const std::vector<double> against = direction(0, false);
    mean_ = direction(0, true);
    for (std::size_t i = 0; i < width_; ++i) mean_[i] -= against[i];
  }

  // `vector`: centred, [D].
  std::vector<TokenEffect> strongest(const std::vector<double>& vector, int top,
                                     bool lowered) const {
    if (scored_ != vector) score(vector);
    std::vector<TokenId> order(scores_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto count = std::min(order.size(), index(top));
    const auto before = [&](TokenId a, TokenId b) {
      const double x = scores_[index(a)], y = scores_[index(b)];
      return x != y ? (lowered ? x < y : x > y) : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
    std::vector<TokenEffect> out;
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<double> d = direction(order[i], true);
      double logit = 0;
      for (std::size_t k = 0; k < width_; ++k) logit += vector[k] * (d[k] - mean_[k]);
      if (lowered ? logit < 0 : logit > 0)
        out.push_back({order[i], model_.token_text(order[i]), logit});
    }
    return out;
  }

 private:
  std::vector<double> direction(TokenId id, bool raw) const {
    backend::Array out = backend_.zeros(width_);
    const std::vector<TokenId> ids = {id};
    backend_.target_direction(x_, row_, ids, nullptr, raw, out);
    std::vector<double> values(width_);
    backend_.download(out, 0, values);
    return values;
  }

  // The head's own logits of the vector, less those of nothing: the norm divides by a number of its
  // own, which changes no order.
  void score(const std::vector<double>& vector) const {
    backend::Array rows = backend_.zeros(2 * width_);
    backend_.upload(rows, 0, vector);
    const std::vector<Index> both = {0, 1};
    std::vector<double> logits;
    backend_.logits(rows, both, logits);
    const std::size_t vocabulary = logits.size() / 2;
    scores_.resize(vocabulary);
    for (std::size_t i = 0; i < vocabulary; ++i) scores_[i] = logits[i] - logits[vocabulary + i];
    scored_ = vector;
  }

  const Model& model_;
  backend::Backend& backend_;
  const backend::Array& x_;
  Index row_;
  std::size_t width_;
  std::vector<double> mean_;
  mutable std::vector<double> scored_, scores_;
};

std::vector<NeuronWriting> neuron_writing(const Prepared& prepared, const Node& node, int top,
                                          const std::vector<int>& neurons,
                                          const Unembedding& unembedding) {
  const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
  backend::Backend& backend = d.backend();
  const ModelConfig& c = d.config();
  const int layer = d.writers()[node.writer].layer;
  std::vector<NeuronWriting> out;
  if (neurons.empty()) return out;
  const LayerConfig& shape = c.layer(layer);
  // Neither an expert's neurons nor those with a norm behind them write on their own.
  if (shape.mixture() || shape.mlp_post_norm) return out;
  for (const int neuron : neurons) {
    if (neuron < 0 || neuron >= shape.n_neurons)
      throw InputError(fmt::format("neuron {} does not exist: the MLP has neurons 0 to {}", neuron,
                                   shape.n_neurons - 1));
    std::vector<double> value(1);
    backend.download(d.pass().layers[index(layer)].act,
                     static_cast<Index>(node.position) * shape.n_neurons + neuron, value);
    backend::Array alone = backend.zeros(shape.n_neurons), written = backend.zeros(c.d_model);
    backend.upload(alone, neuron, value);
    backend.mlp_out(layer, alone, 1, nullptr, written);
    std::vector<double> vector(index(c.d_model));
    backend.download(written, 0, vector);
    base::center(c.norm, vector.data(), std::ssize(vector));
    out.push_back({neuron, value[0], unembedding.strongest(vector, top, false)});
  }
  return out;
}

std::string_view without_blank(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

bool begins_like(std::string_view text, std::string_view typed) {
  if (text.size() < typed.size()) return false;
  return std::equal(typed.begin(), typed.end(), text.begin(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
}

}  // namespace

Writing writing(const Prepared& prepared, const Node& node, int top,
                const std::vector<int>& neurons) {
  const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
  const Writer& writer = d.writers()[node.writer];
  if (!neurons.empty() && writer.kind != WriterKind::mlp)
    throw InputError(fmt::format("{} has no neurons; only MLPs do", d.writers().name(node.writer)));
  const Index width = d.config().d_model;
  std::vector<double> vector(index(width));
  d.backend().download(
      d.writer_vectors(),
      (static_cast<Index>(node.position) * d.writers().count() + node.writer) * width, vector);
  const Unembedding unembedding(prepared, node.position);
  Writing out;
  out.node = node;
  out.promoted = unembedding.strongest(vector, top, false);
  out.lowered = unembedding.strongest(vector, top, true);
  out.neurons = neuron_writing(prepared, node, top, neurons, unembedding);
  return out;
}

std::vector<std::vector<LensCell>> lens(const Prepared& prepared, TokenId target,
                                        const RunContext& context) {
  const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
  const forward::ForwardPass& pass = d.pass();
  if (target < 0 || target >= d.config().vocab_size)
    throw InputError(
        fmt::format("token id {} is outside the vocabulary of {}", target, d.config().vocab_size));
  constexpr int kRows = 32;
  const std::size_t vocabulary = index(d.config().vocab_size);
  std::vector<std::vector<LensCell>> out;
  for (std::size_t l = 0; l <= pass.layers.size(); ++l) {
    context.report("layers", l, pass.layers.size() + 1);
    const backend::Array& x = l < pass.layers.size() ? pass.layers[l].x_pre : pass.x_final;
    std::vector<LensCell> cells(index(d.length()));
    for (int begin = 0; begin < d.length(); begin += kRows) {
      std::vector<Index> rows;
      for (int r = begin; r < std::min(begin + kRows, d.length()); ++r) rows.push_back(r);
      std::vector<double> logits;
      d.backend().logits(x, rows, logits);
      d.backend().parallel_for(std::ssize(rows), [&](Index i) {
        const std::span<double> row(logits.data() + index(i) * vocabulary, vocabulary);
        engine::cap_logits(d.config(), row);
        const double total = engine::log_sum_exp(row);
        const auto best = std::max_element(row.begin(), row.end());
        const TokenId id = best - row.begin();
        cells[index(begin + i)] = {
            {id, prepared.model().token_text(id), *best, std::exp(*best - total)},
            std::exp(row[index(target)] - total)};
      });
    }
    out.push_back(std::move(cells));
  }
  return out;
}

std::vector<Prediction> suggest(const Prepared& prepared, int position, std::string_view text,
                                int top) {
  const Model& model = prepared.model();
  const auto uncapped =
      engine::state_of(prepared)->logits_at(resolve_position(position, prepared.length()));
  const std::string_view typed = without_blank(text);
  if (typed.empty()) return engine::top_predictions(model, *uncapped, top);
  std::vector<double> logits = *uncapped;
  engine::cap_logits(model.config(), logits);
  const double total = engine::log_sum_exp(logits);
  struct Candidate {
    Prediction prediction;
    bool exact;
  };
  std::vector<Candidate> found;
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    const std::string spelled = model.token_text(id);
    const std::string_view word = without_blank(spelled);
    if (!begins_like(word, typed)) continue;
    const double logit = logits[index(id)];
    found.push_back({{id, spelled, logit, std::exp(logit - total)}, word == typed});
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.exact != b.exact ? a.exact : a.prediction.logit > b.prediction.logit;
  });
  std::vector<Prediction> out;
  for (std::size_t i = 0; i < std::min(found.size(), index(top)); ++i)
    out.push_back(std::move(found[i].prediction));
  return out;
}

}  // namespace unpack
