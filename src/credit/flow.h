// The exact sweep: credit from a target or a root down to the embeddings, node by node from the top
// layer, without a threshold.
#pragma once

#include <optional>
#include <vector>

#include "credit/edges.h"
#include "unpack/writers.h"

namespace unpack::credit {

// Where credit starts. A target gives direct credit to every writer at its position; a root is one
// node with credit 1, direct or not.
struct Start {
  int position = 0;  // of the target, or of the root
  std::vector<double>
      first;  // [C] direct credit at `position` (all 0 for a root that counts as indirect)
  std::optional<Node> root;
  bool root_is_direct = false;
  std::vector<DirectEdges>
      direct;  // edges of nodes that hold direct credit: every layer for a target, one for a root

  const DirectEdges* direct_edges(int layer) const {
    for (const DirectEdges& d : direct) {
      if (d.layer == layer) return &d;
    }
    return nullptr;
  }
};

template <typename T>
Start start_at_target(const Edges<T>& edges, int position, const backend::Array& direction);
// With a direction the root counts as direct (reroot = target).
template <typename T>
Start start_at_root(const Edges<T>& edges, const Node& root, const backend::Array* direction);

struct Flow {
  std::vector<double> indirect;  // [S, C] credit from readers (an indirect root's own 1 included)
  std::vector<double> direct;    // [C] at the start's position
  double doubtful = 0;           // share of the passed credit that met ill-conditioned denominators
};

template <typename T>
Flow sweep(const Edges<T>& edges, const Start& start, const RunContext& context);

// What one node sends to each writer by branch: out[branch][C * S], position-major [S, C]. Used for
// roots.
template <typename T>
std::vector<std::pair<Branch, std::vector<double>>> outgoing(const Edges<T>& edges,
                                                             const Start& start, const Node& node);

}  // namespace unpack::credit
