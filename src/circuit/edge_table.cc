#include "circuit/edge_table.h"

#include <algorithm>

#include "backend/mlp_readers.h"
#include "unpack/error.h"

namespace unpack::circuit {

EdgeTable::EdgeTable(const Model& model, int positions)
    : writers_(model.writers()), positions_(positions) {
  const ModelConfig& c = model.config();
  const auto add = [&](int reader, Branch branch, int visible) {
    ports_.push_back({reader, branch, visible, size_});
    size_ += visible;
  };
  for (int l = 0; l < c.n_layers; ++l) {
    first_.push_back(ports_.size());
    for (int h = 0; h < c.n_heads; ++h) {
      for (const Branch branch : {Branch::K, Branch::Q, Branch::V})
        add(writers_.head(l, h), branch, writers_.visible_to_attention(l));
    }
    first_.push_back(ports_.size());
    for (const backend::MlpReader& reader : backend::mlp_readers(c.layer(l)))
      add(writers_.mlp(l), reader.branch, writers_.visible_to_mlp(l));
  }
  first_.push_back(ports_.size());
  add(-1, Branch::none, writers_.count());
}

std::size_t EdgeTable::index(const CircuitEdge& edge) const {
  const bool there =
      placed() ? edge.position >= 0 && static_cast<std::size_t>(edge.position) < positions_
               : edge.position < 0;
  for (const ReaderPort& port : ports_) {
    if (there && port.reader == edge.reader && port.branch == edge.branch &&
        edge.writer < port.visible)
      return place(std::max(edge.position, 0)) + port.first + edge.writer;
  }
  throw InternalError("[EdgeTable] no such edge");
}

const ReaderPort& EdgeTable::port_of(std::size_t edge) const {
  const auto behind =
      std::upper_bound(ports_.begin(), ports_.end(), edge % size_,
                       [](std::size_t at, const ReaderPort& port) { return at < port.first; });
  return *(behind - 1);
}

CircuitEdge EdgeTable::edge(std::size_t index) const {
  const ReaderPort& port = port_of(index);
  return {static_cast<int>(index % size_ - port.first), port.reader, port.branch,
          placed() ? static_cast<int>(index / size_) : -1};
}

EdgeMask EdgeTable::connected(EdgeMask kept) const {
  const std::size_t count = writers_.count(), n = positions();
  // [writer][position]; keys and values at a position serve every later query.
  std::vector<char> fed(count * n, 0), used(count * n, 0);
  std::fill(fed.begin(), fed.begin() + n * writers_.terminals(), 1);
  const auto later = [](const ReaderPort& port) {
    return port.branch == Branch::K || port.branch == Branch::V;
  };
  for (const ReaderPort& port : ports_) {
    for (std::size_t s = 0; s < n; ++s) {
      for (std::size_t w = 0; w < static_cast<std::size_t>(port.visible); ++w) {
        char& keep = kept[s * size_ + port.first + w];
        keep = keep != 0 && fed[w * n + s] != 0;
        if (keep == 0 || port.reader < 0) continue;
        const auto row = fed.begin() + n * port.reader;
        std::fill(row + s, row + (later(port) ? n : s + 1), 1);
      }
    }
  }
  for (auto port = ports_.rbegin(); port != ports_.rend(); ++port) {
    for (std::size_t s = 0; s < n; ++s) {
      bool read = port->reader < 0 && s + 1 == n;
      if (port->reader >= 0) {
        const auto row = used.begin() + n * port->reader;
        const auto end = row + (later(*port) ? n : s + 1);
        read = std::find(row + s, end, 1) != end;
      }
      for (std::size_t w = 0; w < static_cast<std::size_t>(port->visible); ++w) {
        char& keep = kept[s * size_ + port->first + w];
        keep = keep != 0 && read;
        if (keep != 0) used[w * n + s] = 1;
      }
    }
  }
  return kept;
}

std::size_t count_kept(const EdgeMask& mask) {
  return std::count_if(mask.begin(), mask.end(), [](char kept) { return kept != 0; });
}

}  // namespace unpack::circuit
