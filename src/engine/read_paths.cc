#include "engine/read_paths.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/index.h"

namespace unpack::engine {

namespace {

// sum_j |credit[j]| weight[j], in parts that a compiler can take side by side.
template <typename T>
double absolute_sum(const T* credit, const double* weight, std::size_t count) {
  std::array<double, 8> part{};
  std::size_t j = 0;
  for (; j + part.size() <= count; j += part.size())
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] += std::fabs(credit[j + i]) * weight[j + i];
  double sum = 0;
  for (; j < count; ++j) sum += std::fabs(credit[j]) * weight[j];
  for (const double x : part) sum += x;
  return sum;
}

}  // namespace

ReadPaths::ReadPaths(const ReadSweep& sweep, const credit::PathFilter& filter,
                     const RunContext& context)
    : sweep_(sweep),
      d_(sweep.decomposition()),
      filter_(filter),
      context_(context),
      writers_(d_.writers().count()),
      length_(d_.length()) {
  incoming_.assign(length_ * writers_, 0.0);
  for (NodeWays& w : ways_) w.bound = w.mass = incoming_;
  const std::size_t terminals = d_.writers().terminals();
  for (NodeWays& w : ends_) w.bound = w.mass = std::vector<double>(length_ * terminals, 0.0);
  const ReadStart& start = sweep.start();
  for (int w = 0; w < d_.writers().count(); ++w)
    incoming_[at({w, start.position})] = std::fabs(first_of({w, start.position}));
  if (d_.backend().is_double()) {
    pass_down<double>();
  } else {
    pass_down<float>();
  }
  count_ends();
}

double ReadPaths::first_of(const Node& node) const {
  const ReadStart& start = sweep_.start();
  if (start.root) return node == *start.root ? 1.0 : 0.0;
  return node.position == start.position ? sweep_.first()[node.writer] : 0.0;
}

double ReadPaths::share_of_first(const Node& node) const {
  const double first = std::fabs(first_of(node));
  return first == 0 ? 0.0 : first / incoming_[at(node)];
}

// Of all ways that reach the reader and go on by a branch of it.
ReadPaths::Ways ReadPaths::ways(Slot slot, const Node& reader, Branch branch) const {
  const Writer& writer = d_.writers()[reader.writer];
  if (filter_.suffix.min_layer && writer.layer < *filter_.suffix.min_layer) return {};
  const Slot above = below(slot, reader.writer);
  const std::size_t i = at(reader);
  Ways out{ways_[above].bound[i], ways_[above].mass[i]};
  if (above == kAny && branch_fits(branch)) {
    const double own = share_of_first(reader);
    out.bound = std::max(out.bound, own);
    out.mass += own;
  }
  return out;
}

std::vector<std::array<ReadPaths::Ways, 2>> ReadPaths::ways_of(int writer, Branch branch) const {
  std::vector<std::array<Ways, 2>> out(length_);
  for (int q = 0; q < d_.length(); ++q)
    out[q] = {ways(kAny, {writer, q}, branch), ways(kNeed, {writer, q}, branch)};
  return out;
}

// Edges from readers that such ways lead to, to the writers at a position: credit[readers,
// visible].
template <typename T>
void ReadPaths::absorb(int position, std::size_t visible,
                       std::span<const std::array<Ways, 2>> readers, const T* credit) {
  const std::size_t slots = filter_.suffix.through ? 2 : 1;
  const bool masses = filtered();
  const auto terminals = std::min(visible, static_cast<std::size_t>(d_.writers().terminals()));
  // No memory of a thread's own: where there is none left for its destructor, a process ends.
  std::vector<T> memory((1 + 2 * slots) * visible, T(0));
  T* const sum = memory.data();
  const std::array<T*, 2> bound = {sum + visible, sum + (slots + 1) * visible};
  const std::array<T*, 2> mass = {sum + 2 * visible, sum + (slots + 2) * visible};
  const std::size_t row = position * writers_;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const T* c = credit + i * visible;
    const std::array<Ways, 2>& w = readers[i];
    T* total = sum;
    for (std::size_t k = 0; k < slots; ++k) {
      const T most = w[k].bound;
      T* to = bound[k];
      if (k == 0) {
        for (std::size_t j = 0; j < visible; ++j) {
          const T size = std::fabs(c[j]), reach = size * most;
          total[j] += size;
          to[j] = to[j] < reach ? reach : to[j];
        }
      } else {
        for (std::size_t j = 0; j < visible; ++j) to[j] = std::max(to[j], std::fabs(c[j]) * most);
      }
      const T all = w[k].mass;
      T* weight = mass[k];
      for (std::size_t j = 0; masses && j < visible; ++j) weight[j] += std::fabs(c[j]) * all;
    }
    for (std::size_t j = 0; j < terminals; ++j) {
      NodeWays& end = ends_[c[j] < 0 ? 1 : 0];
      const Ways& own = w[slot_at_end(j)];
      const std::size_t to = position * d_.writers().terminals() + j;
      const double size = std::fabs(c[j]);
      end.bound[to] = std::max(end.bound[to], size * own.bound);
      end.mass[to] += size * own.mass;
    }
  }
  for (std::size_t j = 0; j < visible; ++j) {
    incoming_[row + j] += sum[j];
    for (std::size_t k = 0; k < slots; ++k) {
      ways_[k].bound[row + j] = std::max(ways_[k].bound[row + j], static_cast<double>(bound[k][j]));
      ways_[k].mass[row + j] += mass[k][j];
    }
  }
}

// All readers of a writer have been heard: credit becomes shares.
void ReadPaths::finish(int writer) {
  for (int s = 0; s < d_.length(); ++s) {
    const std::size_t i = at({writer, s});
    if (incoming_[i] == 0) continue;
    for (NodeWays& w : ways_) {
      w.bound[i] /= incoming_[i];
      w.mass[i] /= incoming_[i];
    }
  }
}

// What absorb does for all heads of a layer, by the device itself.
bool ReadPaths::pass_on_device(int l) {
  const Writers& writers = d_.writers();
  const ReadSweep::Layer& layer = sweep_.layer(l);
  const backend::AttentionView view = d_.attention_view(l);
  const std::size_t visible = view.visible;
  backend::ReadOps::WaysAbove above;
  above.slots = filter_.suffix.through ? 2 : 1;
  above.terminals = writers.terminals();
  above.filtered = filtered();
  for (int w = 0; w < above.terminals; ++w) above.end_slot[w] = slot_at_end(w);
  for (const Branch branch : {Branch::K, Branch::Q, Branch::V}) {
    for (const Slot slot : {kAny, kNeed}) {
      if (static_cast<int>(slot) >= above.slots) continue;
      for (int h = 0; h < d_.config().n_heads; ++h) {
        for (int q = 0; q < d_.length(); ++q) {
          const Ways w = ways(slot, {writers.head(l, h), q}, branch);
          above.bound.push_back(w.bound);
          above.mass.push_back(w.mass);
        }
      }
    }
  }
  backend::ReadOps::WaysBelow below;
  if (!sweep_.ops().pass_ways(view, layer.heads, layer.offsets, above, below)) return false;
  for (std::size_t i = 0; i < below.sum.size(); ++i) {
    const std::size_t to = i / visible * writers_ + i % visible;
    incoming_[to] += below.sum[i];
    for (std::size_t k = 0; k < static_cast<std::size_t>(above.slots); ++k) {
      const std::size_t from = k * below.sum.size() + i;
      ways_[k].bound[to] = std::max(ways_[k].bound[to], below.bound[from]);
      if (above.filtered) ways_[k].mass[to] += below.mass[from];
    }
  }
  for (std::size_t i = 0; i < below.end_bound.size(); ++i) {
    const std::size_t size = below.end_bound.size() / 2;
    NodeWays& end = ends_[i / size];
    end.bound[i % size] = std::max(end.bound[i % size], below.end_bound[i]);
    if (above.filtered) end.mass[i % size] += below.end_mass[i];
  }
  return true;
}

template <typename T>
void ReadPaths::pass_down() {
  const Writers& writers = d_.writers();
  for (int l = sweep_.layers() - 1; l >= 0; --l) {
    context_.report("paths", sweep_.layers() - 1 - l, sweep_.layers());
    const ReadSweep::Layer& layer = sweep_.layer(l);
    const std::vector<backend::MlpReader> readers = backend::mlp_readers(d_.config().layer(l));
    const int visible = writers.visible_to_mlp(l);
    finish(writers.mlp(l));
    std::vector<double> credit;
    for (std::size_t side = 0; side < readers.size(); ++side) {
      sweep_.ops().position_dots(d_.writer_vectors(), writers.count(), 0, visible, layer.mlp[side],
                                 credit);
      const auto known = ways_of(writers.mlp(l), readers[side].branch);
      d_.backend().parallel_for(d_.length(), [&](Index s) {
        absorb(s, visible, std::span(known).subspan(s, 1), credit.data() + s * visible);
      });
    }
    for (int h = 0; h < d_.config().n_heads; ++h) finish(writers.head(l, h));
    if (pass_on_device(l)) continue;
    std::map<std::pair<int, Branch>, std::vector<std::array<Ways, 2>>> known;
    for (int h = 0; h < d_.config().n_heads; ++h) {
      for (const Branch branch : {Branch::K, Branch::Q, Branch::V})
        known[{h, branch}] = ways_of(writers.head(l, h), branch);
    }
    const backend::AttentionView view = d_.attention_view(l);
    sweep_.ops().visit_edges(
        view, layer.heads, layer.offsets, [&](const backend::ReadOps::Edges& edges) {
          absorb(
              edges.source, view.visible,
              std::span(known.at({edges.head, edges.branch})).subspan(edges.first, edges.queries),
              static_cast<const T*>(edges.credit));
        });
  }
}

void ReadPaths::count_ends() {
  const std::size_t terminals = d_.writers().terminals();
  for (std::size_t s = 0; s < length_; ++s) {
    for (std::size_t w = 0; w < terminals; ++w) {
      const Node node{static_cast<int>(w), static_cast<int>(s)};
      total_ += incoming_[at(node)];
      const double first = first_of(node);
      if (first != 0 && !filter_.branch && slot_at_end(node.writer) == kAny) {
        NodeWays& end = ends_[first < 0 ? 1 : 0];
        double& bound = end.bound[s * terminals + w];
        bound = std::max(bound, std::fabs(first));
        end.mass[s * terminals + w] += std::fabs(first);
      }
      if (filter_.suffix.from && *filter_.suffix.from != node.position) continue;
      for (const bool negative : {false, true}) {
        if (filter_.sign && negative != (*filter_.sign < 0)) continue;
        matching_ += ends_[negative ? 1 : 0].mass[s * terminals + w];
      }
    }
  }
  if (!filtered()) matching_ = total_;
}

template <typename T>
std::vector<double> ReadPaths::pass_up() const {
  const Writers& writers = d_.writers();
  std::vector<double> out(length_ * writers_, 0.0);
  for (std::size_t s = 0; s < length_; ++s) {
    for (int w = 0; w < writers.terminals(); ++w) out[at({w, static_cast<int>(s)})] = 1.0;
  }
  // Masses below, over what reaches the node: what an edge's credit is multiplied with.
  const auto close = [&](int writer) {
    for (int q = 0; q < d_.length(); ++q) {
      const std::size_t i = at({writer, q});
      out[i] = incoming_[i] == 0 ? 0.0 : out[i] / incoming_[i];
    }
  };
  const std::size_t heads = d_.config().n_heads;
  for (int l = 0; l < sweep_.layers(); ++l) {
    context_.check();
    const ReadSweep::Layer& layer = sweep_.layer(l);
    const backend::AttentionView view = d_.attention_view(l);
    const std::size_t cl = view.visible;
    std::vector<std::vector<double>> parts(length_);  // per source [H, queries from it on]
    std::vector<double> sums;                         // or from the device [H, S]
    if (sweep_.ops().edge_masses(view, layer.heads, layer.offsets, out, sums)) {
      for (std::size_t i = 0; i < sums.size(); ++i)
        out[at({writers.head(l, i / length_), static_cast<int>(i % length_)})] += sums[i];
    } else {
      sweep_.ops().visit_edges(
          view, layer.heads, layer.offsets, [&](const backend::ReadOps::Edges& edges) {
            const std::size_t s = edges.source, reach = length_ - s;
            parts[s].resize(heads * reach, 0.0);
            double* sums_of = parts[s].data() + edges.head * reach + edges.first - s;
            const double* own = out.data() + s * writers_;
            for (std::size_t i = 0; i < static_cast<std::size_t>(edges.queries); ++i)
              sums_of[i] += absolute_sum(static_cast<const T*>(edges.credit) + i * cl, own, cl);
          });
    }
    for (std::size_t s = 0; s < length_; ++s) {
      for (std::size_t i = 0; i < parts[s].size(); ++i)
        out[at({writers.head(l, i / (length_ - s)), static_cast<int>(s + i % (length_ - s))})] +=
            parts[s][i];
    }
    for (std::size_t h = 0; h < heads; ++h) close(writers.head(l, h));
    const std::size_t visible = writers.visible_to_mlp(l);
    std::vector<double> credit;
    for (std::size_t side = 0; side < backend::mlp_readers(d_.config().layer(l)).size(); ++side) {
      sweep_.ops().position_dots(d_.writer_vectors(), writers.count(), 0, visible, layer.mlp[side],
                                 credit);
      for (std::size_t s = 0; s < length_; ++s) {
        double& sum = out[at({writers.mlp(l), static_cast<int>(s)})];
        for (std::size_t j = 0; j < visible; ++j)
          sum += std::fabs(credit[s * visible + j]) * out[s * writers_ + j];
      }
    }
    close(writers.mlp(l));
  }
  return out;
}

std::vector<double> ReadPaths::masses_below() const {
  return d_.backend().is_double() ? pass_up<double>() : pass_up<float>();
}

}  // namespace unpack::engine
