// Variants of prompts, run as one batch: each with its own cut, zeroed embeddings and patched
// edges.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "forward/forward.h"
#include "unpack/intervene.h"
#include "unpack/writers.h"

namespace unpack::interventions {

// A clean batch of prompts, and the writer vectors of it.
class CleanRun {
 public:
  CleanRun(backend::Backend& backend, const Writers& writers,
           const std::vector<std::vector<TokenId>>& prompts, const RunContext& context);

  backend::Backend& backend() const { return backend_; }
  const Writers& writers() const { return writers_; }
  const forward::ForwardPass& pass() const { return pass_; }
  const std::vector<std::vector<TokenId>>& prompts() const { return prompts_; }
  const backend::Array& stream(
      int layer) const;  // [T, D] before the layer; after the last one: the final stream
  const backend::Array& vectors(
      int writer) const;  // [T, D] what the writer wrote; made when first asked for

 private:
  backend::Backend& backend_;
  const Writers& writers_;
  std::vector<std::vector<TokenId>> prompts_;
  forward::ForwardPass pass_;
  mutable std::map<int, backend::Array> vectors_;
};

// What one writer writes, replaced or scaled.
struct OutputChange {
  int writer = 0;
  std::optional<int> position;  // nothing: every position
  Ablation ablation = Ablation::zero;
  double scale = 0;
  std::vector<int> except = {};  // positions that stay as they are
};

struct Variant {
  std::size_t prompt = 0;  // index in the clean run
  std::vector<int> zero;   // positions
  std::optional<Cut> cut;
  std::vector<Edge> edges;  // patched from the same prompt index of `other`
  bool heads_frozen =
      false;  // with edges: heads that none of them names write what they wrote in the clean run
  std::vector<OutputChange> outputs = {};
};

// What the attention of each layer read in a run of variants, layer -> [T, D]; layers that the run
// did not reach are as in the clean run.
using ReadStreams = std::map<int, backend::Array>;

// The first layer that a variant can change; n_layers: only the final stream, or nothing at all.
int first_changed_layer(const Writers& writers, const ModelConfig& config, const Variant& variant);

// The final streams of all variants [sum of lengths, D] and where each begins. `target_position` is
// where edges to the target are read.
struct VariantStreams {
  backend::Array x;
  std::vector<backend::Segment> segments;
};
VariantStreams run_variants(const CleanRun& clean, const CleanRun* other,
                            const std::vector<Variant>& variants, int target_position,
                            const RunContext& context);
// Of variants with edges into heads alone. First the senders of the edges are patched into all MLPs
// below the readers, with every head frozen; then each edge is patched as above, with the reader's
// row taken from that run. So what the reader sees of a sender comes directly and through MLPs.
VariantStreams run_paths(const CleanRun& clean, const CleanRun& other,
                         const std::vector<Variant>& variants, int target_position,
                         const RunContext& context);

}  // namespace unpack::interventions
