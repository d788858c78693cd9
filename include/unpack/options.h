// The one home of every option and its default.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "unpack/config.h"

namespace unpack {

enum class Dispatch { aligned, gate };
enum class MlpRule { per_neuron, linearized, l2 };
enum class Scores { raw, centered };
enum class Reroot { output, target };
// Along which direction a node shares out credit that a reader gave it: what its sublayer wrote, or
// the direction in which the reader read it.
enum class Direction { output, read };
// Where centred key credit goes: to the source it was earned for, or to every source by its part in
// the competition.
enum class Keys { source, spread };
enum class Branch {
  none,
  K,
  Q,
  V,
  mlp,
  G,
  U,
  R
};  // none: emb, pos; mlp: the only branch of a plain MLP; R: the router of a mixture
enum class TauRule { named, entry };

const char* to_string(Dispatch x);
const char* to_string(MlpRule x);
const char* to_string(Scores x);
const char* to_string(Reroot x);
const char* to_string(Direction x);
const char* to_string(Keys x);
const char* to_string(Branch x);  // "K", "Q", "V", "MLP", "G", "U", "R", ""
const char* to_string(TauRule x);

// The paper's settings; presets (below) are the others worth a name.
struct Options {
  double beta = 0.8;  // floor of SafeDenom, 0 to 1e6
  std::array<double, 3> weights = {1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0};         // K, Q, V
  std::array<double, 2> mlp_weights = {0.5, 0.5};                            // G, U (gated MLPs)
  std::array<double, 3> expert_weights = {1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0};  // R, G, U (mixtures)
  Dispatch dispatch = Dispatch::aligned;
  MlpRule mlp = MlpRule::per_neuron;
  Scores scores = Scores::raw;
  Reroot reroot = Reroot::output;
  Direction direction = Direction::output;
  double floor = 0;          // direction read: least denominator of K and Q shares, in logits
  Keys keys = Keys::source;  // direction read with centered scores

  bool operator==(const Options&) const = default;
  void check() const;  // throws UsageError for values out of range: weights are 0 to 1e6, not all 0
  // Takes back what does not go together: rules that know no direction (gate, l2) take `output`,
  // which knows neither floor nor keys. Says so where a rule gave way, or nothing.
  std::string settle();
};

// "paper", "released" (the authors' program), "best" (docs/method.md). Throws UsageError.
Options preset_options(const std::string& name);
std::vector<std::string> preset_names();
// What the command line, Python, batch runs and the server start from.
inline constexpr const char* kDefaultPreset = "best";
inline Options default_options() { return preset_options(kDefaultPreset); }

// What is asked about. Positions may be negative everywhere: they count from the end.
struct Target {
  std::vector<TokenId> ids;                    // empty: the model's own top prediction
  std::optional<std::vector<TokenId>> versus;  // nothing: the whole vocabulary
  bool raw = false;                            // leave the contrast out
  int position = -1;
};

// What one question may list, and how many steps a walk along a threshold may take.
inline constexpr std::size_t kMostPaths = 1'000'000;
inline constexpr std::size_t kMostWalks = 2'000'000;

struct PathQuery {
  std::size_t top = 20;
  std::optional<double> tau;
  TauRule rule = TauRule::named;
  std::optional<Branch> branch;        // of the last hop
  std::optional<std::string> through;  // a component at any position, "A3.H1", "MLP0", "emb"
  std::optional<int> from;             // a source position
  std::optional<int> min_layer;        // every head and MLP on the path lies in that layer or above
  std::optional<int> sign;             // +1 or -1

  bool filtered() const { return branch || through || from || min_layer || sign; }
};

struct Question {
  Target target;
  std::optional<std::string> root;  // "A8.H6@13", "MLP3@-1"; nothing: the target
  Options options;
  PathQuery paths;
  bool composition = true;  // of a root: rank those it composes with by the mass below them
};

}  // namespace unpack
