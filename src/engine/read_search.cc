// The exact search for the strongest paths of direction `read`, from the tokens up.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "base/index.h"
#include "credit/child_list.h"
#include "decompose/host_math.h"
#include "engine/read_paths.h"

namespace unpack::engine {

// The ways up from a node that reach `least`, those that can reach furthest first.
std::vector<ReadPaths::Step> ReadPaths::steps(const Node& node, Slot slot, bool fits,
                                              std::size_t count, double least) const {
  const Writers& writers = d_.writers();
  const bool end = terminal(node.writer);
  const Slot above = below(slot, node.writer);
  std::vector<Step> out;
  const auto fits_sign = [&](double credit) {
    return !end || !filter_.sign || (credit < 0) == (*filter_.sign < 0);
  };
  const double first = first_of(node);
  if (first != 0 && above == kAny && fits && fits_sign(first)) {
    const double factor = end ? first : share_of_first(node);
    out.push_back({node, Branch::none, factor, std::fabs(factor), true});
  }
  std::vector<double> vector(d_.config().d_model);
  d_.backend().download(d_.writer_vectors(), at(node) * vector.size(), vector);
  std::vector<std::vector<Step>> by_layer(sweep_.layers());
  std::vector<backend::ReadOps::LayerReads> readers_of_heads;
  int first_layer = 0;  // whose heads can see the writer
  for (int l = sweep_.layers() - 1; l >= 0; --l) {
    if (node.writer >= writers.visible_to_attention(l)) {
      first_layer = l + 1;
      break;
    }
  }
  for (int l = first_layer; l < sweep_.layers(); ++l)
    readers_of_heads.push_back(
        {d_.attention_view(l), &sweep_.layer(l).heads, &sweep_.layer(l).offsets});
  const std::vector<backend::ReadOps::EdgesInto> into_heads =
      sweep_.ops().edges_into(readers_of_heads, node.writer, node.position);
  d_.backend().parallel_for(sweep_.layers(), [&](Index task) {
    const int l = task;
    const ReadSweep::Layer& layer = sweep_.layer(l);
    const auto put = [&](const Node& reader, Branch branch, double credit) {
      if (credit == 0 || !fits_sign(credit)) return;
      const double factor = end ? credit : std::fabs(credit) / incoming_[at(node)];
      if (std::fabs(factor) < least) return;  // no way above adds to it
      const double reach = std::fabs(factor) * ways(above, reader, branch).bound;
      if (reach > 0 && reach >= least)
        by_layer[l].push_back({reader, branch, factor, reach, false});
    };
    if (l >= first_layer) {
      const backend::ReadOps::EdgesInto& in = into_heads[l - first_layer];
      const std::size_t n = in.queries;
      for (std::size_t h = 0; n > 0 && h < static_cast<std::size_t>(d_.config().n_heads); ++h) {
        const int reader = writers.head(l, h);
        for (std::size_t i = 0; i < n; ++i) {
          put({reader, node.position + static_cast<int>(i)}, Branch::K, in.k[h * n + i]);
          put({reader, node.position + static_cast<int>(i)}, Branch::V, in.v[h * n + i]);
        }
        put({reader, node.position}, Branch::Q, in.q[h]);
      }
    }
    if (node.writer >= writers.visible_to_mlp(l)) return;
    const std::vector<backend::MlpReader> readers = backend::mlp_readers(d_.config().layer(l));
    for (std::size_t side = 0; side < readers.size(); ++side) {
      const auto read =
          std::span(layer.mlp[side]).subspan(node.position * vector.size(), vector.size());
      put({writers.mlp(l), node.position}, readers[side].branch, decompose::dot(vector, read));
    }
  });
  for (const auto& some : by_layer) out.insert(out.end(), some.begin(), some.end());
  const auto before = [](const Step& a, const Step& b) {
    return a.reach != b.reach ? a.reach > b.reach
                              : std::tie(a.reader.writer, a.reader.position, a.branch) <
                                    std::tie(b.reader.writer, b.reader.position, b.branch);
  };
  // A list of k paths never needs more than the k best ways out of a node.
  if (count < out.size()) {
    std::nth_element(out.begin(), out.begin() + count, out.end(), before);
    out.resize(count);
  }
  std::sort(out.begin(), out.end(), before);
  return out;
}

// Best first, from the tokens up.
struct ReadPaths::Search {
  // A way from a token up to a node; hops[lower] is the node that it reads.
  struct Hop {
    Node node;
    Branch branch = Branch::none;  // by which it reads the one below
    Index lower = -1;
    double product = 1;
    Slot slot = kAny;
    bool fits = true;
  };
  struct Candidate {
    double reach = 0;
    std::uint64_t order = 0;
    Index hop = -1;  // whose steps these are; -1: the tokens
    std::size_t index = 0;
    bool operator<(const Candidate& other) const {
      return reach != other.reach ? reach < other.reach : order > other.order;
    }
  };

  const ReadPaths& paths;
  std::size_t count;
  double least;
  bool prune;
  std::vector<Step> tokens = {};
  std::vector<Hop> hops = {};
  std::priority_queue<Candidate> queue = {};
  std::uint64_t order = 0;
  struct List {
    std::vector<Step> steps;
    double least = 0;  // what does not reach it is left out
    bool made = false;
  };
  std::map<std::tuple<std::size_t, Slot, bool>, List> lists = {};
  // Sizes of the strongest paths that are known to exist: every bound is met by a path.
  std::priority_queue<double, std::vector<double>, std::greater<>> sizes = {};

  void learn(double size) {
    if (sizes.size() < count) {
      sizes.push(size);
    } else if (size > sizes.top()) {
      sizes.pop();
      sizes.push(size);
    }
  }
  // What a path must reach to be among those asked for, with room for rounding.
  double floor() const {
    constexpr double kRoom = 1 - 1e-4;
    return prune && sizes.size() == count ? std::max(least, kRoom * sizes.top()) : least;
  }

  const std::vector<Step>& list_of(Index hop) {
    if (hop < 0) return tokens;
    const Hop& h = hops[hop];
    List& list = lists[{paths.at(h.node), h.slot, h.fits}];
    const double product = std::fabs(h.product),
                 wanted = product > 0 ? (1 - 1e-12) * floor() / product : 0.0;
    // One that left out more than this way up may leave out is made again, and only grows.
    if (!list.made || wanted < list.least)
      list = {paths.steps(h.node, h.slot, h.fits, std::max<std::size_t>(count, 1), wanted), wanted,
              true};
    return list.steps;
  }
  // The steps out of a way that has just been found; the best of them ends in a path that is known.
  void open(Index hop) {
    const double product = std::fabs(hops[hop].product);
    const std::vector<Step>& list = list_of(hop);
    for (std::size_t i = 1; i < list.size(); ++i) {
      const double size = product * list[i].reach;
      if (sizes.size() == count && size <= sizes.top()) break;
      learn(size);
    }
    push(hop, 0);
  }
  void push(Index hop, std::size_t index) {
    const std::vector<Step>& list = list_of(hop);
    if (index >= list.size()) return;
    const double product = hop < 0 ? 1.0 : std::fabs(hops[hop].product);
    queue.push({product * list[index].reach, order++, hop, index});
  }
  Path path_of(Index top, double credit) const {
    Path path;
    path.credit = credit;
    for (Index h = top; h >= 0; h = hops[h].lower) {
      path.nodes.push_back(hops[h].node);
      path.branches.push_back(hops[h].branch);
    }
    std::reverse(path.nodes.begin(), path.nodes.end());
    std::reverse(path.branches.begin(), path.branches.end());
    return path;
  }
};

std::vector<Path> ReadPaths::best(std::size_t count, double least, bool prune) const {
  if (count == 0) return {};
  Search search{*this, count, least, prune};
  const std::size_t terminals = d_.writers().terminals();
  for (std::size_t s = 0; s < length_; ++s) {
    if (filter_.suffix.from && *filter_.suffix.from != static_cast<int>(s)) continue;
    for (std::size_t w = 0; w < terminals; ++w) {
      double reach = 0;
      for (const bool negative : {false, true}) {
        if (filter_.sign && negative != (*filter_.sign < 0)) continue;
        reach = std::max(reach, ends_[negative ? 1 : 0].bound[s * terminals + w]);
      }
      if (reach <= 0) continue;
      search.learn(reach);
      search.tokens.push_back(
          {{static_cast<int>(w), static_cast<int>(s)}, Branch::none, 1.0, reach, false});
    }
  }
  std::stable_sort(search.tokens.begin(), search.tokens.end(),
                   [](const Step& a, const Step& b) { return a.reach > b.reach; });
  std::vector<Path> found;
  search.push(-1, 0);
  while (!search.queue.empty() && found.size() < count) {
    if (search.order % 1024 == 0) context_.check();
    const Search::Candidate next = search.queue.top();
    search.queue.pop();
    if (next.reach < least) break;
    const Step step = search.list_of(next.hop)[next.index];
    search.push(next.hop, next.index + 1);
    const Search::Hop* from = next.hop < 0 ? nullptr : &search.hops[next.hop];
    const double product = (from ? from->product : 1.0) * step.factor;
    if (step.end) {
      found.push_back(search.path_of(next.hop, product));
      continue;
    }
    Search::Hop hop{step.reader, step.branch, next.hop, product, kAny, branch_fits(step.branch)};
    hop.slot =
        from ? below(from->slot, from->node.writer) : (filter_.suffix.through ? kNeed : kAny);
    if (!from) hop.fits = !filter_.branch;
    search.hops.push_back(hop);
    search.open(std::ssize(search.hops) - 1);
  }
  // Bounds that rounding made larger than any path may have left some out.
  if (found.size() < count && search.floor() > least) return best(count, least, false);
  credit::sort_paths(found);
  return found;
}

}  // namespace unpack::engine
