#include "circuit/edge_table.h"

#include <algorithm>

#include "backend/mlp_readers.h"
#include "unpack/error.h"

namespace unpack {

EdgeTable::EdgeTable(const Model& model) : writers_(model.writers()) {
  const ModelConfig& c = model.config();
  const auto add = [&](int reader, Branch branch, int visible) {
    ports_.push_back({reader, branch, visible, size_});
    size_ += static_cast<std::size_t>(visible);
  };
  for (int l = 0; l < c.n_layers; ++l) {
    first_.push_back(ports_.size());
    for (int h = 0; h < c.n_heads; ++h) {
      for (const Branch branch : {Branch::K, Branch::Q, Branch::V})
        add(writers_.head(l, h), branch, writers_.visible_to_attention(l));
    }
    first_.push_back(ports_.size());
    for (const MlpReader& reader : mlp_readers(c.layer(l)))
      add(writers_.mlp(l), reader.branch, writers_.visible_to_mlp(l));
  }
  add(-1, Branch::none, writers_.count());
}

std::size_t EdgeTable::index(const CircuitEdge& edge) const {
  for (const ReaderPort& port : ports_) {
    if (port.reader == edge.reader && port.branch == edge.branch && edge.writer < port.visible)
      return port.first + static_cast<std::size_t>(edge.writer);
  }
  throw InternalError("[EdgeTable] no such edge");
}

const ReaderPort& EdgeTable::port_of(std::size_t edge) const {
  const auto behind =
      std::upper_bound(ports_.begin(), ports_.end(), edge,
                       [](std::size_t at, const ReaderPort& port) { return at < port.first; });
  return *(behind - 1);
}

CircuitEdge EdgeTable::edge(std::size_t index) const {
  const ReaderPort& port = port_of(index);
  return {static_cast<int>(index - port.first), port.reader, port.branch};
}

EdgeMask EdgeTable::connected(EdgeMask kept) const {
  const auto count = static_cast<std::size_t>(writers_.count());
  std::vector<char> fed(count, 0), used(count, 0);
  std::fill(fed.begin(), fed.begin() + writers_.terminals(), 1);
  for (const ReaderPort& port : ports_) {
    for (std::size_t w = 0; w < static_cast<std::size_t>(port.visible); ++w) {
      char& keep = kept[port.first + w];
      keep = static_cast<char>(keep != 0 && fed[w] != 0);
      if (keep != 0 && port.reader >= 0) fed[static_cast<std::size_t>(port.reader)] = 1;
    }
  }
  for (auto port = ports_.rbegin(); port != ports_.rend(); ++port) {
    const bool read = port->reader < 0 || used[static_cast<std::size_t>(port->reader)] != 0;
    for (std::size_t w = 0; w < static_cast<std::size_t>(port->visible); ++w) {
      char& keep = kept[port->first + w];
      keep = static_cast<char>(keep != 0 && read);
      if (keep != 0) used[w] = 1;
    }
  }
  return kept;
}

std::size_t count_kept(const EdgeMask& mask) {
  return static_cast<std::size_t>(
      std::count_if(mask.begin(), mask.end(), [](char kept) { return kept != 0; }));
}

}  // namespace unpack
