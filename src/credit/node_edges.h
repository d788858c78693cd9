// The rows by which nodes pass credit on: their own or, for direct credit, those towards the
// target. The one home of that choice.
#pragma once

#include <memory>
#include <vector>

#include "credit/edges.h"
#include "credit/flow.h"

namespace unpack::credit {

struct GraphNode {
  int writer = 0;
  int position = 0;
  bool direct = false;  // passes on direct credit
};

// One node
// ------------------------------------------------------------------------------------------------

// Of a head at q. Key and value rows are those of direct credit as well.
template <typename T>
struct HeadEdges {
  std::vector<double> entry;              // [q + 1]
  std::vector<double> key_coef;           // [q + 1]
  std::vector<double> query_edge;         // [Cl]
  std::shared_ptr<const T> keys, values;  // [q + 1, Cl]
};
// `keys`: its key_rows, where they are there already.
template <typename T>
HeadEdges<T> head_edges(const Edges<T>& edges, const Start& start, const GraphNode& node,
                        std::shared_ptr<const T> keys = nullptr);

struct ReaderEdges {
  Branch branch = Branch::none;
  std::vector<double> row;  // [Cm]
};
// Of an MLP, a row for each reader that has edges.
template <typename T>
std::vector<ReaderEdges> reader_edges(const Edges<T>& edges, const Start& start,
                                      const GraphNode& node);

// Stage 1 shares of the node's entries: [q + 1] of a head's sources, or those of an MLP's neurons.
template <typename T>
std::vector<double> entry_shares(const Edges<T>& edges, const Start& start, const GraphNode& node);

// The nodes of a layer
// ------------------------------------------------------------------------------------------------

template <typename E>
struct HeadRows {
  const E* entry;       // [q + 1]
  const E* key_coef;    // [q + 1]
  const E* query_edge;  // [Cl]
};

// All nodes of a layer whose edges are in host memory. Who visits one sees its indirect credit with
// its own rows (of T), then its direct credit with the rows towards the target (of double); never a
// credit of 0.
template <typename T>
class LayerNodes {
 public:
  LayerNodes(const Edges<T>& edges, int layer, const DirectEdges* direct, const Flow& flow)
      : own_(edges.layer(layer)),
        direct_(direct),
        flow_(flow),
        head0_(edges.decomposition().writers().head(layer, 0)),
        mlp_(edges.decomposition().writers().mlp(layer)),
        writers_(edges.decomposition().writers().count()),
        cl_(edges.decomposition().writers().visible_to_attention(layer)),
        cm_(edges.decomposition().writers().visible_to_mlp(layer)),
        length_(edges.decomposition().length()),
        pairs_(backend::tri(edges.decomposition().length())) {}

  // visit(credit, rows)
  template <typename Visit>
  void head(std::size_t h, std::size_t q, const Visit& visit) const {
    const double indirect = flow_.indirect[q * writers_ + head0_ + h];
    const double direct = direct_credit(head0_ + h, q);
    const std::size_t row = h * pairs_ + backend::tri(q);
    if (indirect != 0)
      visit(indirect, HeadRows<T>{own_.entry.data() + row, own_.key_coef.data() + row,
                                  own_.query_edge.data() + (h * length_ + q) * cl_});
    if (direct != 0)
      visit(direct, HeadRows<double>{direct_->entry.data() + h * (q + 1),
                                     direct_->key_coef.data() + h * (q + 1),
                                     direct_->query_edge.data() + h * cl_});
  }

  // visit(credit, row [Cm]), a reader at a time
  template <typename Visit>
  void mlp(std::size_t q, const Visit& visit) const {
    const double indirect = flow_.indirect[q * writers_ + mlp_];
    const double direct = direct_credit(mlp_, q);
    for (std::size_t i = 0; indirect != 0 && i < own_.mlp_edge.size(); ++i) {
      if (!own_.mlp_edge[i].empty()) visit(indirect, own_.mlp_edge[i].data() + q * cm_);
    }
    for (std::size_t i = 0; direct != 0 && i < direct_->mlp_edge.size(); ++i) {
      if (!direct_->mlp_edge[i].empty()) visit(direct, direct_->mlp_edge[i].data());
    }
  }

  int direct_query() const { return direct_ != nullptr ? direct_->query : 0; }
  // What the heads' direct credit makes of the key coefficients there, [H, q + 1].
  std::vector<double> direct_keys(std::size_t heads) const {
    std::vector<double> out;
    if (direct_ == nullptr) return out;
    out = direct_->key_coef;
    const std::size_t sources = out.size() / heads;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= flow_.direct[head0_ + i / sources];
    return out;
  }

 private:
  double direct_credit(std::size_t writer, std::size_t q) const {
    const bool there = direct_ != nullptr && static_cast<std::size_t>(direct_->query) == q;
    return there ? flow_.direct[writer] : 0.0;
  }

  const LayerEdges<T>& own_;
  const DirectEdges* direct_;
  const Flow& flow_;
  std::size_t head0_, mlp_, writers_, cl_, cm_, length_, pairs_;
};

}  // namespace unpack::credit
