// What the model would do otherwise: what a component writes replaced or scaled, a writer hidden
// from its readers, an edge taken from another prompt, an embedding set to zero.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/result.h"

namespace unpack {

enum class Channel { attention, mlp };
const char* to_string(Channel channel);  // "attention", "mlp"
inline constexpr std::array kChannels = {Channel::attention, Channel::mlp};

// One reader's view of one writer: `A5.H1@9 -[K]-> A7.H2@13`, `MLP0@9 -> MLP3@9`, `A5.H1@9 ->
// target` (the final norm). The writer's position is where the branch reads: the source of a K or V
// hop, the reader's own position otherwise.
struct Edge {
  Node writer;
  Branch branch =
      Branch::mlp;             // K, Q, V of a head; mlp (plain), G, U (gated); none: the final norm
  std::optional<Node> reader;  // nothing: the target
  bool operator==(const Edge&) const = default;
};
Edge parse_edge(const Writers& writers, const ModelConfig& config, std::string_view text,
                int length);
std::string to_string(const Writers& writers, const Edge& edge);

// What a component's output is replaced by: nothing, its own mean over the positions of the prompt,
// or what it writes there in another prompt.
enum class Ablation { zero, mean, resample };
const char* to_string(Ablation ablation);  // "zero", "mean", "resample"
inline constexpr std::array kAblations = {Ablation::zero, Ablation::mean, Ablation::resample};

// What is changed. Everything named here happens in one and the same pass.
struct Intervention {
  // Components ("A3.H1": at every position) and nodes ("A3.H1@5": at one) that write r + scale
  // (c - r) in place of c, with r the replacement: 0 ablates, 1 changes nothing, 2 doubles.
  std::vector<std::string> ablate;
  // The other way round: those alone stay as they are (there may be none), and every other head and
  // MLP is ablated. Embeddings stay.
  bool keep = false;
  Ablation ablation = Ablation::zero;
  double scale = 0;
  std::optional<std::string> cut;        // a component, "A3.H1", "MLP0", "emb", "pos"
  Channel channel = Channel::attention;  // which sublayers no longer see it
  std::vector<std::string> edges;        // texts of edges to be patched
  // The prompt of the same length that patched edges and resampled outputs come from.
  std::vector<TokenId> patch_from;
  std::vector<int> zero;  // positions whose token embedding is set to zero
};

struct InterventionReading {
  double nll = 0;                       // summed negative log-likelihood of tokens 1 .. S-1
  double target = 0;                    // logit difference against the contrast (raw: the logit)
  double probability = 0;               // of the target set
  std::vector<Prediction> predictions;  // ten, at the target position
};

struct InterventionResult {
  ModelInfo model;
  std::vector<Token> tokens;
  TargetInfo target;
  Intervention intervention;
  InterventionReading clean, cut;  // before and after
};

// Throws InputError for a component, node or position that is not there, UsageError for an
// intervention that changes nothing.
InterventionResult intervene(const Model& model, std::span<const TokenId> ids,
                             const Intervention& intervention, const Target& target = {},
                             const RunContext& context = {});

// {"clean": {"nll", "target", "probability"}, "cut": {...}, ...}
std::string to_json(const InterventionResult& result);

// Are components and nodes what a prediction rests on? The model as it is, without them, with them
// alone (every other head and MLP ablated), and with no head or MLP at all.
struct NodesProof {
  ModelInfo model;
  TargetInfo target;
  std::vector<std::string> components;
  Ablation ablation = Ablation::zero;
  InterventionReading clean, without, only, none;
  // By the target: (only - none) / (clean - none), and 1 - (without - none) / (clean - none).
  // Nothing where ablating everything changes nothing.
  std::optional<double> faithfulness, necessity;
};
// patch_from: for Ablation::resample.
NodesProof prove_nodes(const Model& model, std::span<const TokenId> ids,
                       const std::vector<std::string>& components, Ablation ablation,
                       const std::vector<TokenId>& patch_from, const Target& target = {},
                       const RunContext& context = {});
std::string to_json(const NodesProof& proof);

// Many at once, for measurements over text
// ------------------------------------------------------------------------------------------

struct Cut {
  int writer = 0;
  Channel channel = Channel::attention;
};
// Summed negative log-likelihood of tokens 1 .. S-1 of every prompt: [0] clean, then one row per
// cut. Only what lies after a cut is computed again.
std::vector<std::vector<double>> knockout_losses(const Model& model,
                                                 const std::vector<std::vector<TokenId>>& prompts,
                                                 const std::vector<Cut>& cuts,
                                                 const RunContext& context = {});

// Logits at `position` of the prompt with the embeddings of each set of positions zeroed, a row per
// set.
std::vector<std::vector<double>> zeroed_logits(const Model& model, std::span<const TokenId> ids,
                                               const std::vector<std::vector<int>>& sets,
                                               int position, const RunContext& context = {});

// What a patched edge takes along. direct: the edge alone, and everything behind its reader
// follows. heads_frozen: every head that no edge names writes what it wrote before, so that a
// change travels through MLPs alone. through_mlps (edges into heads alone): the reader sees its
// sender directly and through the MLPs that lie between, with all other heads as they were; what
// lies behind the reader follows.
enum class PatchRoute { direct, heads_frozen, through_mlps };

// The target's logit difference after patching each list of edges from `other`, a value per list.
std::vector<double> patched_targets(const Model& model, std::span<const TokenId> ids,
                                    std::span<const TokenId> other,
                                    const std::vector<std::vector<Edge>>& patches,
                                    const Target& target, const RunContext& context = {},
                                    PatchRoute route = PatchRoute::direct);

}  // namespace unpack
