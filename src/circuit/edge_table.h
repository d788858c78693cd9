// Every edge there can be in a model, in canonical order, and parts of them.
#pragma once

#include <algorithm>
#include <vector>

#include "unpack/circuit.h"
#include "unpack/writers.h"

namespace unpack::circuit {

// One way a reader looks at the stream. With positions its edges come once for each.
struct ReaderPort {
  int reader = -1;  // -1: the target
  Branch branch = Branch::none;
  int visible = 0;        // writers it can see
  std::size_t first = 0;  // its first edge; one a visible writer follows
};

using EdgeMask = std::vector<char>;  // an entry an edge: kept or not

class EdgeTable {
 public:
  // positions: an edge for each of so many; 0: one edge stands for all of them.
  explicit EdgeTable(const Model& model, int positions = 0);

  const Writers& writers() const { return writers_; }
  const std::vector<ReaderPort>& ports() const { return ports_; }
  std::size_t size() const { return size_ * positions(); }
  // Edges of one position; those of the next follow.
  std::size_t stride() const { return size_; }
  std::size_t positions() const { return std::max<std::size_t>(positions_, 1); }
  bool placed() const { return positions_ > 0; }
  // Where the edges of a row of a prompt begin.
  std::size_t place(std::size_t position) const { return placed() ? position * size_ : 0; }
  std::size_t index(const CircuitEdge& edge) const;  // InternalError where there is none
  CircuitEdge edge(std::size_t index) const;
  const ReaderPort& port_of(std::size_t edge) const;
  // Where the ports of a layer's heads begin (three a head: K, Q, V), those of its MLP, and that of
  // the target (layer n_layers).
  std::size_t attention_ports(int layer) const { return first_[2 * layer]; }
  std::size_t mlp_ports(int layer) const { return first_[2 * layer + 1]; }
  std::size_t target_port() const { return ports_.size() - 1; }

  EdgeMask none() const { return EdgeMask(size(), 0); }
  EdgeMask all() const { return EdgeMask(size(), 1); }
  // What lies on a way from an embedding to the target.
  EdgeMask connected(EdgeMask kept) const;

 private:
  const Writers& writers_;
  std::vector<ReaderPort> ports_;
  std::vector<std::size_t> first_;
  std::size_t size_ = 0, positions_ = 0;
};

std::size_t count_kept(const EdgeMask& mask);

}  // namespace unpack::circuit
