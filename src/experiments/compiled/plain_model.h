// A compiled model run in double precision and plain loops, where every reader's input can be
// changed by itself and every input has its true gradient. Slow, small, and independent of the
// engine.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "experiments/compiled/compiler.h"

namespace unpack::experiments::compiled {

using Rows = std::vector<std::vector<double>>;  // [s][D]

// A reader's port: the input of a head's keys, queries or values, of an MLP, or of the final norm.
struct Port {
  int layer = 0;  // n_layers: the target
  int head = -1;  // -1: the MLP (or the target)
  Branch branch = Branch::none;
  auto operator<=>(const Port&) const = default;
};

// The embeddings themselves, as a port: its gradient is that of the whole stream below layer 0.
inline constexpr Port kInputPort{-1, -1, Branch::none};

struct Run {
  std::vector<Rows> writers;               // [writer][s][D], canonical order
  std::vector<double> logits;              // [V] at the last position
  double difference = 0;                   // target less contrast
  std::vector<std::vector<Rows>> pattern;  // [layer][head][q][s]
  std::map<Port, Rows> gradient;         // of the difference by each port's input, where asked for
  std::vector<std::vector<Rows>> value;  // [layer][head][s][D] = v W_O
};

struct RunOptions {
  bool gradients = false;
  const Rows* input = nullptr;  // [s][D] in place of the embeddings
  // Added to the input of one port.
  const Port* port = nullptr;
  const Rows* change = nullptr;
};

class PlainModel {
 public:
  explicit PlainModel(const CompiledModel& model) : m_(model) {}
  Run run(const std::vector<TokenId>& ids, TokenId target, TokenId contrast,
          const RunOptions& options = {}) const;

  const CompiledModel& model() const { return m_; }
  int terminals() const { return m_.format == Format::gpt2 ? 2 : 1; }
  int writers() const { return terminals() + m_.n_layers() * (m_.n_heads + 1); }
  int head(int layer, int h) const { return terminals() + layer * (m_.n_heads + 1) + h; }
  int mlp(int layer) const { return head(layer, m_.n_heads); }
  std::string name(int writer) const;
  Port port(const EdgeName& edge) const;
  Rows embeddings(const std::vector<TokenId>& ids) const;

 private:
  const CompiledModel& m_;
};

}  // namespace unpack::experiments::compiled
