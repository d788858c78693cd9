// A program over named features, and the transformer it becomes. Every component says what it reads
// on which branch and what it writes, so that the true edges of the circuit follow from the
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unpack/config.h"
#include "unpack/options.h"

namespace unpack::experiments::compiled {

enum class Format { gpt2, llama };
const char* to_string(Format format);

struct Settings {
  Format format = Format::gpt2;
  double sharpness = 12;  // attention logits per unit of match
  double noise = 0;       // Gaussian on every weight, in parts of its matrix' root mean square
  std::uint64_t seed = 0;
};

// live: part of the program; dead: reads everything, writes what nobody reads; decoy: writes the
// same vector everywhere, which a live head's keys read and its softmax cannot see.
enum class Role { live, dead, decoy };

// logits += weight * sharpness * (query feature at q) * (key feature at s)
struct Match {
  int query = 0, key = 0;
  double weight = 1;
};
// (to) += weight * (from), over the sources that attention chose
struct Move {
  int from = 0, to = 0;
  double weight = 1;
};
struct Head {
  std::string name;
  Role role = Role::live;
  std::vector<Match> matches;
  std::optional<int> offset;  // attends that many positions back
  std::vector<Move> moves;
};
// (to) += out * max(sum in + bias, 0)
struct Neuron {
  std::vector<std::pair<int, double>> in;
  double bias = 0;
  std::vector<std::pair<int, double>> out;
};
struct Mlp {
  std::string name;
  Role role = Role::dead;
  std::vector<Neuron> neurons;
};
struct Layer {
  std::vector<Head> heads;
  Mlp mlp;
};

// A question to the model, with what the answer depends on.
struct Prompt {
  std::vector<TokenId> ids, counterfactual;
  TokenId target = 0, contrast = 0;
  std::vector<int> tokens;  // positions the program reads its answer from
};

// Writers and readers by their canonical names: "emb", "A1.H0", "MLP2", "target".
struct EdgeName {
  std::string writer, reader;
  Branch branch = Branch::none;  // none: the target
  auto operator<=>(const EdgeName&) const = default;
};
std::string to_string(const EdgeName& edge);
enum class Truth { no, yes, neutral };  // neutral: only the constant is read; counts for nobody

struct Program {
  std::string name, what;
  int vocabulary = 0, length = 0;  // tokens, positions
  int features = 0;
  int constant = 0, decoy = 0;
  std::vector<int> junk;
  std::vector<int> position;                             // GPT-2: one a position
  std::vector<std::vector<std::pair<int, double>>> emb;  // [token] features the embedding writes
  std::vector<int> out;                                  // [token] what the unembedding reads
  std::vector<Layer> layers;
  std::vector<Prompt> prompts;
  Format format = Format::gpt2;

  Truth truth(const EdgeName& edge) const;
  std::vector<EdgeName> edges() const;  // every edge there can be, in canonical order
  // Whether an edge leads out of a dead writer, or the decoy into the head that reads it.
  bool from_dead(const EdgeName& edge) const;
  bool from_decoy(const EdgeName& edge) const;
};

// All programs, with `n` prompts each.
std::vector<std::string> program_names();
Program make_program(const std::string& name, const Settings& settings, int n);  // UsageError

}  // namespace unpack::experiments::compiled
