// Direction `read` (docs/method.md): credit is passed on along the direction in which it was read.
// One sweep from the top, a modified backward pass: readers fold their credit into one vector a
// position, and what a writer gets is its product with that vector.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "backend/mlp_readers.h"
#include "backend/read_ops.h"
#include "decompose/decomposition.h"
#include "unpack/options.h"
#include "unpack/run_context.h"

namespace unpack::engine {

// Where credit starts: a target direction for every writer at a position, or one root in a
// direction.
struct ReadStart {
  int position = 0;
  std::vector<double> direction;  // [D]
  std::optional<Node> root;       // credit 1 on this node alone
};

class ReadSweep {
 public:
  // What the readers of a layer do, for edges and paths.
  struct Layer {
    backend::ReadOps::HeadReads heads;
    backend::ReadOps::KeyOffsets offsets;
    std::array<std::vector<double>, backend::kMostReaders> mlp;  // [S, D] per reader
  };

  // Which layers are kept for edges: none; all; or that of the root, and nothing below it is done.
  enum class Keep { nothing, all, root };

  // The backend of d has ReadOps.
  ReadSweep(const decompose::Decomposition& d, const Options& options, const ReadStart& start,
            Keep keep, const RunContext& context);

  const decompose::Decomposition& decomposition() const { return d_; }
  backend::ReadOps& ops() const { return ops_; }
  const ReadStart& start() const { return start_; }
  double credit(int position, int writer) const { return credit_[at(position, writer)]; }
  const std::vector<double>& first() const { return first_; }  // [C] direct credit
  double doubtful() const { return passed_ > 0 ? doubt_ / passed_ : 0.0; }
  // Layers that pass anything on: those up to a root's own, which nothing above reads from.
  int layers() const { return end_; }
  const Layer& layer(int l) const { return layers_[l]; }

  // Shares of credit 1 over the entries of the root: sources of a head, neurons of an MLP.
  const std::vector<double>& root_entries() const { return entries_; }

 private:
  using Values = std::vector<double>;

  std::size_t at(int position, int writer) const { return position * writers_ + writer; }
  bool starts_at(int writer) const { return !start_.root || start_.root->writer == writer; }
  void sweep_all();
  void sweep_root();
  void take(const Values& from, int first, int end);
  Values key_parts(const Values& keyed, int first, int end) const;
  double start_scale(int writer, const Values& products);
  std::vector<int> positions_of(const Values& rows) const;
  backend::Array neuron_entries(int l, const Values& linear, const Values& keyed);
  backend::ReadOps::NeuronCredit credit_at_start(int l, backend::MlpSide side,
                                                 const backend::Array& own, double weight);
  void mlp(int l, const Values& linear, const Values& keyed, Values& out);
  Values head_directions(int l, const Values& linear, const Values& keyed);
  void attention(int l, const Values& linear, Values& keyed, Values& out);

  const decompose::Decomposition& d_;
  backend::ReadOps& ops_;
  const ModelConfig& c_;
  Options o_;
  ReadStart start_;
  Keep keep_;
  int end_;
  const RunContext& context_;
  std::size_t length_, width_, writers_;
  Values credit_;  // [S, C]
  Values keyed_;   // [S, C] the part of it that came by K
  Values first_;
  Values entries_;
  std::vector<Layer> layers_;
  double passed_ = 0, doubt_ = 0;
};

}  // namespace unpack::engine
