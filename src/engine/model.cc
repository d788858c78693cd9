#include "unpack/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "backend/mlp_readers.h"
#include "base/formulas.h"
#include "base/index.h"
#include "chat/source.h"
#include "engine/finite.h"
#include "engine/state.h"
#include "forward/block.h"
#include "model/gguf_model.h"
#include "model/load.h"
#include "unpack/about.h"

namespace unpack {

namespace {

// Products of a model that can have none are left out, with a word.
LoadOptions possible_options(const ModelConfig& config, LoadOptions options) {
  const std::string obstacle = weight_product_obstacle(config);
  if (!options.weight_products || options.device == "cuda" || obstacle.empty()) return options;
  options.weight_products = false;
  if (options.notice) options.notice("weight_products is left out: " + obstacle);
  return options;
}

backend::BackendOptions backend_options(const ModelConfig& config, const LoadOptions& options) {
  const std::size_t bytes = weight_product_bytes(config);
  if (options.weight_products && bytes > options.product_limit) {
    throw InputError(
        fmt::format("the weight products of this model take {} MiB, more than the {} MiB allowed; "
                    "leave out weight_products",
                    bytes >> 20, options.product_limit >> 20));
  }
  return {options.device,     options.threads, options.tf32,
          options.exact_fp32, options.notice,  options.weight_products};
}

}  // namespace

std::size_t weight_product_bytes(const ModelConfig& config) {
  const Writers writers(config);
  std::size_t sources = 0;  // layers of heads that each MLP sees
  for (int l = 0; l < config.n_layers; ++l)
    sources += writers.visible_to_mlp(l) > writers.head(l, 0) ? l + 1 : l;
  return sources * (config.n_heads * config.d_head) * config.most_entries() *
         backend::neuron_sides(config) * sizeof(float);
}

// A head writes z W_O: a product of weights alone stands for it only where nothing else comes
// between, and an MLP's readers must be the same at every position.
std::string weight_product_obstacle(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.post_norm()) return "this family norms what a sublayer puts out";
    if (layer.mixture()) return "every position reads through experts of its own";
  }
  return {};
}

engine::ModelState::ModelState(std::shared_ptr<const model::ModelWeights> w,
                               const LoadOptions& load_options)
    : weights(std::move(w)),
      name(weights->config.name),
      writers(weights->config),
      options(possible_options(weights->config, load_options)) {
  backend = backend::make_backend(weights, backend_options(weights->config, options));
  if (!backend->looks_at_values()) backend->check_values();
}

Model Model::with(const LoadOptions& options) const {
  auto state = std::make_shared<engine::ModelState>(state_->weights, options);
  state->tokenizer = state_->tokenizer;
  state->tokenizer_problem = state_->tokenizer_problem;
  state->name = state_->name;
  state->chat = state_->chat;
  state->stored_as = state_->stored_as;
  return Model(std::move(state));
}

Model Model::load(const std::string& name, const LoadOptions& options) {
  const std::filesystem::path folder = locate_model(name);
  // A GGUF file holds everything, and is read once.
  const std::filesystem::path gguf_file = model::find_gguf(folder);
  const auto gguf = gguf_file.empty() ? nullptr : model::open_gguf(gguf_file);
  auto weights = std::make_shared<model::ModelWeights>(
      gguf ? model::load_gguf(gguf, model::LookAt::used)
           : model::load_folder(folder, options.mapped, model::LookAt::used));
  std::filesystem::path shown = name;
  if (!shown.has_filename()) shown = shown.parent_path();
  std::error_code ignored;
  weights->config.name = std::filesystem::exists(name, ignored) ? shown.filename().string() : name;
  auto state = std::make_shared<engine::ModelState>(weights, options);
  if (!gguf) {
    state->tokenizer = find_tokenizer(folder);
  } else if (const std::string json = model::gguf_tokenizer(*gguf); !json.empty()) {
    state->tokenizer = Tokenizer::from_json(json, gguf_file.string());
  }
  if (!state->tokenizer) {
    state->tokenizer_problem =
        fmt::format("{} has no tokenizer.json (or vocab.json + merges.txt); give the prompt as ids",
                    folder.string());
  }
  state->chat = gguf ? chat::gguf_chat_source(*gguf) : read_chat_source(folder);
  state->stored_as = gguf ? model::gguf_quantisation(gguf->content) : model::stored_type(folder);
  return Model(std::move(state));
}

Model Model::random(const std::string& shape_or_config_json, std::uint64_t seed,
                    const LoadOptions& options, DType dtype) {
  const bool json = shape_or_config_json.find('{') != std::string::npos;
  auto weights = std::make_shared<model::ModelWeights>(model::random_weights(
      json ? shape_or_config_json : model::known_shape(shape_or_config_json), seed, dtype));
  weights->config.name = json ? "random" : shape_or_config_json + " (random)";
  auto state = std::make_shared<engine::ModelState>(weights, options);
  state->tokenizer_problem = "a random model has no tokenizer; give the prompt as ids";
  return Model(std::move(state));
}

Model Model::from_tensors(const std::string& config_json,
                          const std::map<std::string, TensorRef>& tensors,
                          std::shared_ptr<const void> owner, const LoadOptions& options) {
  std::map<std::string, model::StoredTensor> stored;
  for (const auto& [name, t] : tensors) {
    std::size_t count = 1;
    for (const Index n : t.shape) {
      if (n < 0 || __builtin_mul_overflow(count, static_cast<std::size_t>(n), &count) ||
          count > SIZE_MAX / 16)
        throw InputError(fmt::format("tensor {} has a shape that no memory holds", name));
    }
    stored[name] = {name, t.dtype, t.shape, static_cast<const std::byte*>(t.data),
                    count * tensor::dtype_size(t.dtype)};
  }
  auto weights = std::make_shared<model::ModelWeights>(
      model::from_memory(config_json, stored, std::move(owner)));
  if (weights->config.name.empty()) weights->config.name = "memory";
  auto state = std::make_shared<engine::ModelState>(weights, options);
  state->tokenizer_problem = "a model in memory has no tokenizer; give the prompt as ids";
  return Model(std::move(state));
}

const ModelConfig& Model::config() const { return state_->weights->config; }
const Writers& Model::writers() const { return state_->writers; }
bool Model::has_tokenizer() const { return state_->tokenizer.has_value(); }

ModelInfo Model::info() const {
  const ModelConfig& c = config();
  return {state_->name,
          c.family,
          state_->stored_as.empty() ? to_string(c.dtype) : state_->stored_as,
          state_->weights->fingerprint,
          c.n_layers,
          c.n_heads,
          c.d_model,
          c.gated()};
}

ProgramInfo Model::program() const {
  return {version(), state_->backend->name(), state_->backend->threads()};
}

const Tokenizer& Model::tokenizer() const {
  if (!state_->tokenizer) throw InputError(state_->tokenizer_problem);
  return *state_->tokenizer;
}

std::vector<TokenId> Model::encode_prompt(std::string_view text, bool without_bos) const {
  std::vector<TokenId> ids;
  if (!without_bos) ids = prompt_prefix(config(), tokenizer());
  const std::vector<TokenId> body = tokenizer().encode(text);
  ids.insert(ids.end(), body.begin(), body.end());
  if (ids.empty()) throw InputError("the prompt is empty");
  return ids;
}

TokenId Model::single_token(std::string_view text) const {
  const std::vector<TokenId> ids = tokenizer().encode(text);
  if (ids.size() == 1) return ids[0];
  std::string parts;
  for (const TokenId id : ids)
    parts += fmt::format("{}\"{}\" ({})", parts.empty() ? "" : " + ", token_text(id), id);
  throw InputError(
      fmt::format("\"{}\" is {} tokens: {}; a target must be one token (mind the leading space), "
                  "sets are given as ids",
                  text, ids.size(), parts.empty() ? "none" : parts));
}

std::string Model::token_text(TokenId id) const {
  if (state_->tokenizer && id >= 0 && static_cast<std::size_t>(id) < state_->tokenizer->size())
    return state_->tokenizer->token_text(id);
  return fmt::format("#{}", id);
}

std::vector<Token> Model::tokens(std::span<const TokenId> ids) const {
  std::vector<Token> out;
  for (std::size_t i = 0; i < ids.size(); ++i)
    out.push_back({static_cast<int>(i), ids[i], token_text(ids[i])});
  return out;
}

void Model::check(std::span<const TokenId> ids) const { forward::check_prompt(config(), ids); }

// Of a large vocabulary it takes a millisecond on one thread, as long as much of a short prompt's
// question does.
double engine::log_sum_exp(std::span<const double> logits, backend::Backend* backend) {
  constexpr std::size_t kPart = 4096;
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> sums((logits.size() + kPart - 1) / kPart, 0.0);
  const auto add_up = [&](std::size_t i) {
    for (const double x : logits.subspan(i * kPart, std::min(kPart, logits.size() - i * kPart)))
      sums[i] += std::exp(x - largest);
  };
  if (backend != nullptr) {
    backend->parallel_for(std::ssize(sums), [&](Index i) { add_up(i); });
  } else {
    for (std::size_t i = 0; i < sums.size(); ++i) add_up(i);
  }
  return largest + std::log(std::accumulate(sums.begin(), sums.end(), 0.0));
}

void engine::cap_logits(const ModelConfig& config, std::span<double> logits) {
  if (config.logit_cap == 0) return;
  for (double& x : logits) x = base::soft_cap(x, config.logit_cap);
}

ExpertUses engine::expert_uses(std::span<const std::shared_ptr<const backend::Routing>> routings,
                               int length) {
  ExpertUses uses;
  for (const auto& routing : routings) {
    auto& layer = uses.emplace_back(routing == nullptr ? 0 : static_cast<std::size_t>(length));
    for (std::size_t s = 0; s < layer.size(); ++s) {
      for (int i = 0; i < routing->chosen; ++i) {
        const std::size_t slot = routing->slot(s, i);
        layer[s].push_back({routing->expert[slot], routing->weight[slot]});
      }
    }
  }
  return uses;
}

std::vector<Prediction> engine::top_predictions(const Model& model,
                                                const std::vector<double>& uncapped, int top) {
  std::vector<double> logits = uncapped;
  engine::cap_logits(model.config(), logits);
  const auto n = std::min(static_cast<std::size_t>(std::max(top, 0)), logits.size());
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](TokenId a, TokenId b) {
    const double x = logits[a];
    const double y = logits[b];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + n, order.end(), before);
  const double total = engine::log_sum_exp(logits, engine::state_of(model)->backend.get());
  std::vector<Prediction> out;
  for (std::size_t i = 0; i < n; ++i) {
    const double logit = logits[order[i]];
    out.push_back({order[i], model.token_text(order[i]), logit, std::exp(logit - total)});
  }
  return out;
}

PredictResult Model::predict(std::span<const TokenId> ids, const PredictOptions& options,
                             const RunContext& context) const {
  if (options.top < 1)
    throw UsageError(fmt::format("top takes a number of 1 or more, not {}", options.top));
  backend::Backend& backend = *state_->backend;
  const ModelConfig& c = config();
  forward::check_prompt(c, ids);
  const int length = ids.size();
  const int position = resolve_position(options.position, length);
  forward::ForwardOptions forward_options;
  forward_options.keep = options.lens;
  forward_options.check_values = false;  // the logits look at the head
  std::vector<std::shared_ptr<const backend::Routing>> routings(c.layers.size());
  forward::ForwardHooks hooks;
  if (options.experts) {
    if (!c.mixture())
      throw InputError(fmt::format("{} has no experts: it is no mixture", state_->name));
    hooks.router = [&](int layer, const backend::Array&, backend::Array& values) {
      std::vector<double> row(values.size());
      backend.download(values, 0, row);
      routings[layer] = forward::choose_experts(c.layer(layer), std::move(row));
    };
    forward_options.hooks = &hooks;
  }
  const forward::ForwardPass pass =
      forward::forward(backend, {{ids.begin(), ids.end()}}, forward_options, context);
  PredictResult result;
  result.model = info();
  result.tokens = tokens(ids);
  result.log_probability.resize(ids.size());
  std::vector<double> logits;
  const auto at = [&](const backend::Array& x, int row) {
    const std::vector<Index> rows = {row};
    backend.logits(x, rows, logits);
    backend.check_values();
    engine::check_logits(logits);
    return engine::top_predictions(*this, logits, options.top);
  };
  if (options.log_probabilities) {
    // Those of the position itself come with the last of them: the head is read once.
    constexpr int kRows = 32;
    const std::size_t vocabulary = c.vocab_size;
    std::vector<double> own;
    for (int begin = 0; begin < length; begin += kRows) {
      context.check();
      const int end = std::min(begin + kRows, length);
      std::vector<Index> rows(end - begin);
      std::iota(rows.begin(), rows.end(), begin);
      backend.logits(pass.x_final, rows, logits);
      backend.check_values();
      engine::check_logits(logits);
      if (begin <= position && position < end) {
        const auto first = logits.begin() + (position - begin) * c.vocab_size;
        own.assign(first, first + c.vocab_size);
      }
      backend.parallel_for(end - begin, [&](Index i) {
        const std::size_t next = begin + i + 1;
        if (next == ids.size()) return;
        const std::span<double> row(logits.data() + i * vocabulary, vocabulary);
        engine::cap_logits(c, row);
        result.log_probability[next] = row[ids[next]] - engine::log_sum_exp(row);
      });
    }
    result.predictions = engine::top_predictions(*this, own, options.top);
  } else {
    result.predictions = at(pass.x_final, position);
  }
  if (options.lens) {
    for (const forward::LayerPass& layer : pass.layers)
      result.lens.push_back(at(layer.x_pre, position));
    result.lens.push_back(result.predictions);
  }
  if (options.experts) result.experts = engine::expert_uses(routings, length);
  return result;
}

void SamplingOptions::check() const {
  if (max_tokens < 0)
    throw UsageError(fmt::format("max_tokens takes a number of 0 or more, not {}", max_tokens));
  // Smaller ones would divide logits out of the range of a double.
  constexpr double kColdest = 1e-6, kHottest = 1e6;
  if (temperature != 0 && !(temperature >= kColdest && temperature <= kHottest))
    throw UsageError(fmt::format("temperature takes 0, or a number between {:g} and {:g}, not {:g}",
                                 kColdest, kHottest, temperature));
  if (top_k < 0) throw UsageError(fmt::format("top_k takes a number of 0 or more, not {}", top_k));
}

std::vector<TokenId> Model::generate(std::span<const TokenId> ids, const SamplingOptions& options,
                                     const std::function<bool(TokenId)>& emit,
                                     const RunContext& context) const {
  options.check();
  forward::check_prompt(config(), ids);
  const int room = config().n_ctx - ids.size();
  forward::KeyValueCache cache(*state_->backend,
                               ids.size() + std::max(0, std::min(room, options.max_tokens)));
  std::mt19937_64 generator(options.seed);
  std::vector<TokenId> out;
  std::vector<TokenId> next(ids.begin(), ids.end());
  while (static_cast<int>(out.size()) < std::min(options.max_tokens, room)) {
    context.check();
    const std::vector<double> logits = cache.step(next);
    engine::check_logits(logits);
    TokenId chosen = 0;
    if (options.temperature == 0) {
      chosen = std::max_element(logits.begin(), logits.end()) - logits.begin();
    } else {
      const int k =
          options.top_k > 0 ? std::min(options.top_k, config().vocab_size) : config().vocab_size;
      const std::vector<Prediction> candidates = engine::top_predictions(*this, logits, k);
      std::vector<double> weight;
      weight.reserve(candidates.size());
      for (const Prediction& p : candidates)
        weight.push_back(std::exp((p.logit - candidates[0].logit) / options.temperature));
      const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
      // 53 random bits: the same draw with every standard library.
      double draw = (generator() >> 11) * 0x1.0p-53 * total;
      std::size_t i = 0;
      while (i + 1 < weight.size() && draw >= weight[i]) draw -= weight[i++];
      chosen = candidates[i].id;
    }
    const std::vector<TokenId>& ends = config().end_tokens;
    if (std::find(ends.begin(), ends.end(), chosen) != ends.end()) break;
    out.push_back(chosen);
    if (emit && !emit(chosen)) break;
    next.assign(1, chosen);
  }
  return out;
}

TargetInfo engine::resolve_target(const Model& model, const Target& target, int length,
                                  const std::vector<double>& logits) {
  TargetInfo info;
  info.position = resolve_position(target.position, length);
  info.raw = target.raw;
  const TokenId vocabulary = logits.size();
  const auto check = [&](const std::vector<TokenId>& ids, const char* what) {
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocabulary)
        throw InputError(
            fmt::format("{} id {} is outside the vocabulary (0 to {})", what, id, vocabulary - 1));
    }
  };
  check(target.ids, "target");
  info.ids = target.ids;
  std::vector<double> own = logits;
  engine::cap_logits(model.config(), own);
  if (info.ids.empty())  // the first of the largest
    info.ids.push_back(
        static_cast<TokenId>(std::max_element(own.begin(), own.end()) - own.begin()));
  if (target.versus) {
    if (target.raw) throw UsageError("give versus or raw_logit, not both");
    if (target.versus->empty()) throw UsageError("the contrast set is empty");
    check(*target.versus, "contrast");
    info.versus_ids = target.versus;
  }
  const auto words = [&](const std::vector<TokenId>& ids) {
    std::string text;
    for (const TokenId id : ids) text += (text.empty() ? "" : " | ") + model.token_text(id);
    return text;
  };
  const auto mean = [&](const std::vector<TokenId>& ids) {
    double sum = 0;
    for (const TokenId id : ids) sum += logits[id];
    return sum / ids.size();
  };
  info.text = words(info.ids);
  info.logit = mean(info.ids);
  if (info.versus_ids) {
    info.versus_text = words(*info.versus_ids);
    info.logit_difference = info.logit - mean(*info.versus_ids);
  } else if (!info.raw) {
    info.logit_difference =
        info.logit - std::accumulate(logits.begin(), logits.end(), 0.0) / logits.size();
  }
  const double total = engine::log_sum_exp(own, engine::state_of(model)->backend.get());
  for (const TokenId id : info.ids) info.probability += std::exp(own[id] - total);
  return info;
}

}  // namespace unpack
