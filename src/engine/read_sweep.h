// Direction `read` (docs/method.md): credit is passed on along the direction in which it was read.
// One sweep from the top, a modified backward pass: readers fold their credit into one vector a
// position, and what a writer gets is its product with that vector.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "backend/mlp_readers.h"
#include "engine/state.h"
#include "unpack/options.h"
#include "unpack/run_context.h"

namespace unpack {

// Where credit starts: a target direction for every writer at a position, or one root in a
// direction.
struct ReadStart {
  int position = 0;
  std::vector<double> direction;  // [D]
  std::optional<Node> root;       // credit 1 on this node alone
};

// What one node sends, credit included: by K and V [(q + 1), Cl], by Q [Cl], an MLP's readers [Cm].
struct SentRows {
  std::vector<double> k, v, q;
  std::array<std::vector<double>, kMostReaders> mlp;
};

class ReadSweep {
 public:
  // Edges (sent) can be asked for only where they were announced: they take memory.
  ReadSweep(const PreparedState& state, const Options& options, const ReadStart& start,
            bool with_edges, const RunContext& context);

  const Decomposition& decomposition() const { return d_; }
  const ReadStart& start() const { return start_; }
  double credit(int position, int writer) const { return credit_[at(position, writer)]; }
  const std::vector<double>& first() const { return first_; }  // [C] direct credit
  double doubtful() const { return passed_ > 0 ? doubt_ / passed_ : 0.0; }

  // Shares of credit 1 over the entries of the root: sources of a head, neurons of an MLP.
  std::vector<double> root_entries() const;
  void sent(int writer, int position, SentRows& out) const;

 private:
  struct Layer {
    std::vector<double> key_coef;      // [H, tri]
    std::vector<double> key_offset;    // [H, S, Cl], keys = spread
    std::vector<double> query_vector;  // [H, S, D]
    std::vector<double> value_vector;  // [H, S, D], without the source's deviation
    std::array<std::vector<double>, kMostReaders> mlp_vector;  // [S, D] per reader
    std::vector<double> dev, pattern;                          // [S], [H, tri]
  };
  using Values = std::vector<double>;

  std::size_t at(int position, int writer) const {
    return static_cast<std::size_t>(position) * writers_ + static_cast<std::size_t>(writer);
  }
  void center(Values& rows) const;
  bool starts_at(int writer) const { return !start_.root || start_.root->writer == writer; }
  double scale(double credit, double sum, double abs, int kind) const;
  void mlp(int l, const Values& linear, const Values& keyed, Values& out);
  void attention(int l, const Values& linear, const Values& keyed, Values& out, Values& out_keyed);
  void key_credit(int l);
  std::vector<double> key_rows(int l, int h, int q) const;
  Values direction_of(int kind, const Values& linear, const Values& keyed) const;
  Values neuron_entries(int l, const Values& linear, const Values& keyed);
  Values neuron_read(int l, MlpSide side, const Values& coef) const;
  Values behind(const WeightView& post, const Array& dev, const Values& g) const;
  void to_stream(Norm kind, const WeightView& norm, const Values& dev, Values& rows) const;
  void undo(const LayerConfig& shape, const WeightView& norm, const Array& dev, std::size_t heads,
            Values& g) const;

  const PreparedState& state_;
  const Decomposition& d_;
  const ModelWeights& weights_;
  const ModelConfig& c_;
  Options o_;
  ReadStart start_;
  bool with_edges_;
  const RunContext& context_;
  std::size_t length_, width_, writers_;
  Values vectors_;  // [S, C, D] centred
  Values credit_;   // [S, C]
  Values keyed_;    // [S, C] the part of it that came by K
  Values first_;
  Values entries_;
  std::vector<Layer> layers_;
  double passed_ = 0, doubt_ = 0;
};

}  // namespace unpack
