// A model ready to answer: weights on a device, tokenizer, prediction and generation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"
#include "unpack/options.h"
#include "unpack/result.h"
#include "unpack/run_context.h"
#include "unpack/tokenizer.h"

namespace unpack {

struct LoadOptions {
  // "auto": a CUDA device where there is one, else the CPU; "cpu", "cuda", "reference" (double
  // precision, plain loops). Empty: auto, and not a word where no CUDA plugin is installed.
  std::string device = "auto";
  int threads = 0;    // 0: as many as the machine has
  bool tf32 = false;  // CUDA: matrix products in TF32, ten times faster and three digits short
  // CUDA: no product as a sum of tensor-core products, which is the way where it is faster and
  // keeps five digits of the sums behind denominators.
  bool exact_fp32 = false;
  // Told in one line why something is not as it was asked for: "auto" took the CPU, weight products
  // were left out.
  std::function<void(const std::string&)> notice;
  bool weight_products = false;  // keep W_O C W_in of every head and MLP in memory: a one-time cost
                                 // that makes every prompt cheaper
  std::size_t product_limit = std::size_t{2}
                              << 30;  // bytes they may take; a model that needs more is refused
  bool mapped = true;  // false: weight files are read into memory, so that nobody can pull one away
};

// What the weight products of a model take in single precision.
std::size_t weight_product_bytes(const ModelConfig& config);
// Why a model can have none (they are then left out), in words; empty where it can.
std::string weight_product_obstacle(const ModelConfig& config);

struct SamplingOptions {
  int max_tokens = 50;
  double temperature = 0;  // 0: greedy
  int top_k = 0;           // 0: all
  std::uint64_t seed = 0;

  void check() const;  // throws UsageError; a temperature is 0, or 1e-6 to 1e6
};

struct PredictOptions {
  int top = 10;
  bool lens = false;
  int position = -1;
  bool log_probabilities = true;  // of every token; costs the head at every position
  bool experts = false;           // which experts of a mixture every token used
};

// A tensor the caller holds, for from_tensors: shape, dtype and bytes in row-major order.
struct TensorRef {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

class Prepared;
namespace engine {
struct ModelState;
struct Inside;  // how the library itself reaches what stands behind a Model or a Prepared
}  // namespace engine

class Model {
 public:
  // A folder, a name in the local Hugging Face cache, or a bundled name.
  static Model load(const std::string& name, const LoadOptions& options = {});
  static Model random(const std::string& shape_or_config_json, std::uint64_t seed,
                      const LoadOptions& options = {}, DType dtype = DType::f32);
  // Weights in memory under their Hugging Face names; `owner` keeps them alive.
  static Model from_tensors(const std::string& config_json,
                            const std::map<std::string, TensorRef>& tensors,
                            std::shared_ptr<const void> owner, const LoadOptions& options = {});

  // The same weights with other options, nothing loaded again.
  Model with(const LoadOptions& options) const;

  const ModelConfig& config() const;
  ModelInfo info() const;
  ProgramInfo program() const;
  const Writers& writers() const;

  bool has_tokenizer() const;
  const Tokenizer& tokenizer() const;  // throws InputError where the folder has none
  // The prompt with the special tokens in front that this model expects (unless without_bos).
  std::vector<TokenId> encode_prompt(std::string_view text, bool without_bos = false) const;
  TokenId single_token(
      std::string_view text) const;          // throws InputError that shows how the text splits
  std::string token_text(TokenId id) const;  // falls back to "#id" without a tokenizer
  std::vector<Token> tokens(std::span<const TokenId> ids) const;
  // Throws InputError where a prompt is empty, too long or holds an id outside the vocabulary.
  void check(std::span<const TokenId> ids) const;

  PredictResult predict(std::span<const TokenId> ids, const PredictOptions& options = {},
                        const RunContext& context = {}) const;
  // Calls `emit` for every new token; returns all new ids. Stops at the end-of-text token, the
  // context length or when emit returns false.
  std::vector<TokenId> generate(std::span<const TokenId> ids, const SamplingOptions& options,
                                const std::function<bool(TokenId)>& emit = {},
                                const RunContext& context = {}) const;

  // The forward pass and the denominators; any number of questions are then cheap.
  Prepared prepare(std::span<const TokenId> ids, const RunContext& context = {}) const;
  // The same for many prompts, sharing the weights. Order is kept.
  std::vector<Prepared> prepare(const std::vector<std::vector<TokenId>>& prompts,
                                const RunContext& context = {}) const;

 private:
  friend struct engine::Inside;
  explicit Model(std::shared_ptr<const engine::ModelState> state) : state_(std::move(state)) {}
  std::shared_ptr<const engine::ModelState> state_;
};

}  // namespace unpack
