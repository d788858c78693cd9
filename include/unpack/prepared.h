// One prompt, prepared: answers any number of targets and roots.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/result.h"

namespace unpack {

namespace engine {
struct PreparedState;
}

// Realised arrays of the forward pass, row-major, as float64.
struct CachedArray {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

class Prepared {
 public:
  // Token credit, node credit, roots, composition and paths. Thread-safe.
  TraceResult trace(const Question& question, const RunContext& context = {}) const;
  // The same credit edge by edge: what each reader sends to each writer on each branch, summed over
  // the positions of both; the target is a reader too. Edges without credit are left out.
  std::vector<EdgeCredit> edge_credit(const Question& question,
                                      const RunContext& context = {}) const;
  // query: one position, or nothing for the mean over queries; all: every query.
  InteractionResult interactions(std::optional<int> query, bool all,
                                 const RunContext& context = {}) const;
  // Raw scores of every visible writer for the readers of a layer: K, Q [C_l, H, S, S], V [C_l, H,
  // S], mlp/G/U [C_l, S, N]. Mixtures: N of every expert, R [C_l, S, experts]; 0 for those unused.
  CachedArray scores(int layer, Branch branch) const;
  std::vector<ClosureCheck> validate(const RunContext& context = {}) const;
  // The forward pass under TransformerLens-like names: resid_pre, resid_mid, resid_post, q, k, v,
  // pattern, z, pre, mlp_out, attn_out, ln1_scale, ln2_scale, embed, pos_embed, logits.
  CachedArray cache(const std::string& name, int layer) const;

  const Model& model() const;
  const std::vector<TokenId>& ids() const;
  int length() const { return ids().size(); }
  // What it holds in memory now, with what earlier questions left for the next one.
  std::size_t bytes() const;

 private:
  friend struct engine::Inside;
  explicit Prepared(std::shared_ptr<const engine::PreparedState> state)
      : state_(std::move(state)) {}
  std::shared_ptr<const engine::PreparedState> state_;
};

// Tokens of the model's own that are explained where no continuation is given.
inline constexpr int kAttributedTokens = 10;

// Token credit of every token of a continuation, from one prepare over prompt + continuation.
AttributeResult attribute(const Model& model, std::span<const TokenId> prompt,
                          std::span<const TokenId> continuation, const Options& options,
                          const RunContext& context = {});

}  // namespace unpack
