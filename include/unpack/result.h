// What the engine answers: plain data, the same words as in the JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "unpack/options.h"
#include "unpack/writers.h"

namespace unpack {

struct Token {
  int position = 0;
  TokenId id = 0;
  std::string text;
};

struct Prediction {
  TokenId id = 0;
  std::string text;
  double logit = 0;
  double probability = 0;
};

struct ModelInfo {
  std::string name, family, dtype, fingerprint;
  int layers = 0, heads = 0, d_model = 0;
  bool gated = false;
};

struct ProgramInfo {
  std::string version, device;
  int threads = 0;
};

struct TargetInfo {
  int position = 0;
  std::vector<TokenId> ids;
  std::optional<std::vector<TokenId>> versus_ids;
  bool raw = false;
  std::string text;
  std::optional<std::string> versus_text;
  double logit = 0;
  std::optional<double> logit_difference;
  double probability = 0;
};

// Nodes from the source to the root side (a root node included); branches[i] is the branch of
// nodes[i]'s own hop.
struct Path {
  std::vector<Node> nodes;
  std::vector<Branch> branches;
  double credit = 0;
  double percent = 0;  // of the total positive token credit
};

struct Coverage {
  std::size_t paths = 0;
  double absolute = 0;
  double absolute_matching = 0;
  double absolute_total = 0;
};

struct CompositionEntry {
  int writer = 0;
  double mass = 0;
  double credit = 0;
};

struct NeuronEntry {
  int neuron = 0;
  double credit = 0;
  int expert = -1;  // of a mixture
};

struct ExpertEntry {
  int expert = 0;
  double weight = 0;  // what its output is multiplied by
  double credit = 0;
};

// An expert that a token used.
struct ExpertUse {
  int expert = 0;
  double weight = 0;  // what its output is multiplied by
};
using ExpertUses = std::vector<std::vector<std::vector<ExpertUse>>>;  // [L][S], heaviest first
// Credit that a reader passes to a writer, over all their positions.
struct EdgeCredit {
  int writer = 0;
  int reader = -1;  // -1: the target
  Branch branch = Branch::none;
  double credit = 0;
};

struct TraceResult {
  ProgramInfo program;
  ModelInfo model;
  std::vector<Token> tokens;
  TargetInfo target;
  Options options;
  PathQuery query;
  std::string method = "unpack";
  std::optional<Node> root;             // nothing: the target
  std::vector<Prediction> predictions;  // ten, at the target position

  std::vector<std::string> writers;              // [C] names in canonical order
  std::vector<double> importance;                // [C] direct credit
  std::vector<double> token_credit;              // [S]
  std::vector<double> token_percent;             // [S]
  std::vector<std::vector<double>> node_credit;  // [C][S] direct and indirect

  // Only with a root:
  std::map<Branch, std::vector<std::vector<double>>> incoming;  // branch -> [C][S]
  std::vector<double> entries;              // a head: [q + 1] shares over sources
  std::vector<NeuronEntry> neuron_entries;  // an MLP: all neurons, largest first
  std::vector<ExpertEntry> expert_entries;  // a mixture: the experts in use, heaviest first
  std::map<Branch, std::vector<CompositionEntry>>
      composition;  // largest mass first; Branch::none stands for "all"

  ExpertUses experts;  // of a mixture, else empty; dense layers have empty lists

  std::vector<Path> paths;
  Coverage coverage;
  double conservation_first = 0;
  double conservation_reached = 0;
  double ill_conditioned = 0;  // share of credit that passed where |sum| < 1e-5 of the absolute sum
  std::vector<std::string> warnings;

  int length() const { return tokens.size(); }
  Writers writer_table() const;  // from `layout`
  ModelConfig layout;            // shape only; lets reports name and place writers
};

// `emb@9 -> MLP0@9 -[V]-> A8.H6@13 -> target`
std::string path_text(const TraceResult& result, const Path& path);

struct Interaction {
  int reader = 0;
  int query = -1;  // -1: the mean over queries
  int writer = 0;
  double score = 0;
};

struct InteractionResult {
  ModelInfo model;
  std::vector<Token> tokens;
  std::vector<std::string> writers;
  std::vector<Interaction> attention;
  std::vector<Interaction> mlp;
  bool per_query = false;
};

struct ClosureCheck {
  std::string name;  // "residual", "K", "Q", "V", "MLP", "importance"
  double error = 0;  // largest difference over the largest value
  double limit = 1e-4;
  bool passed() const { return error <= limit; }
};

struct PredictResult {
  ModelInfo model;
  std::vector<Token> tokens;
  std::vector<std::optional<double>> log_probability;  // [S], nothing for the first
  std::vector<Prediction> predictions;
  std::vector<std::vector<Prediction>> lens;  // per layer's stream (embedding first), when asked
  ExpertUses experts;                         // when asked
};

struct AttributeRow {
  int position = 0;  // of the predicting token
  TokenId target_id = 0;
  std::string text;
  double probability = 0;
  std::vector<double> token_credit;  // positions up to it
  std::vector<double> token_percent;
};

struct AttributeResult {
  ProgramInfo program;
  ModelInfo model;
  Options options;
  std::vector<Token> tokens;
  std::vector<AttributeRow> rows;
};

}  // namespace unpack
