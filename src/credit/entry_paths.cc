// The threshold rule of the paper's pseudocode: a walk per source and per neuron.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/index.h"
#include "credit/best_paths.h"
#include "credit/child_list.h"
#include "credit/safe_denom.h"
#include "unpack/error.h"

namespace unpack::credit {

namespace {

constexpr std::size_t kMostFound = 5 * kMostPaths;  // before the filters

// Everything a walk needs at a node, per unit of credit: entries with their sub-shares.
struct SubShare {
  Branch branch = Branch::none;
  int writer = 0;
  int position = 0;
  double factor = 0;  // of the node's credit: entry share times branch weight times writer share
};
struct EntryShares {
  double entry = 0;
  std::vector<SubShare> subs;  // largest first
};

template <typename T>
class EntryWalk {
 public:
  EntryWalk(const PathGraph<T>& graph, double tau, const RunContext& context)
      : graph_(graph),
        edges_(graph.edges()),
        d_(graph.decomposition()),
        tau_(tau),
        context_(context) {}

  ThresholdPaths run(std::size_t top) {
    for (const TopNode& node : graph_.tops()) {
      if (std::fabs(node.first) >= tau_) enter(node.node, Branch::none, node.first);
    }
    ThresholdPaths out;
    for (auto& [key, credit] : found_) {
      Path path = unpack_key(key);
      path.credit = credit;
      if (!matches(path)) continue;
      out.paths.push_back(std::move(path));
    }
    sort_paths(out.paths);
    out.more = out.paths.size() > top;
    if (out.more) out.paths.resize(top);
    return out;
  }

 private:
  using Key =
      std::vector<int>;  // writer, position, branch of the hop that led there, from the root side

  void enter(const GraphNode& node, Branch branch, double credit) {
    if (++walks_ % 4096 == 0) context_.report("walks", walks_, 0);
    if (walks_ > kMostWalks || found_.size() > kMostFound)
      throw InputError(
          fmt::format("tau {:g} is too small here: more than {} walks, or {} paths, lie "
                      "above it; take a larger tau",
                      tau_, kMostWalks, kMostFound));
    key_.insert(key_.end(), {node.writer, node.position, static_cast<int>(branch)});
    if (graph_.terminal(node.writer)) {
      found_[key_] += credit;
    } else {
      for (const EntryShares& entry : shares(node, std::fabs(credit))) {
        if (std::fabs(credit * entry.entry) < tau_) break;
        for (const SubShare& sub : entry.subs) {
          const double next = credit * sub.factor;
          if (std::fabs(next) < tau_) break;
          enter({sub.writer, sub.position, false}, sub.branch, next);
        }
      }
    }
    key_.resize(key_.size() - 3);
  }

  // Shares of a node, largest entry first, complete for credits up to `credit` (below tau nothing
  // is followed).
  const std::vector<EntryShares>& shares(const GraphNode& node, double credit) {
    auto& slot = cache_[{node.writer, node.position, node.direct ? 1 : 0}];
    if (slot.credit < credit) {
      const double complete =
          2 * credit;  // room, so that a slightly larger credit needs no new list
      slot.entries = d_.writers()[node.writer].kind == WriterKind::mlp
                         ? mlp_shares(node, tau_ / complete)
                         : head_shares(node, tau_ / complete);
      slot.credit = complete;
    }
    return slot.entries;
  }

  static void finish(std::vector<EntryShares>& entries) {
    for (EntryShares& entry : entries) {
      std::stable_sort(entry.subs.begin(), entry.subs.end(),
                       [](const SubShare& a, const SubShare& b) {
                         return std::fabs(a.factor) > std::fabs(b.factor);
                       });
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const EntryShares& a, const EntryShares& b) {
                       return std::fabs(a.entry) > std::fabs(b.entry);
                     });
  }

  std::vector<EntryShares> head_shares(const GraphNode& node, double least) {
    const Writer& writer = d_.writers()[node.writer];
    const Options& options = edges_.options();
    const backend::AttentionSums& sums = d_.attention(writer.layer, options.scores);
    const Index cl = d_.writers().visible_to_attention(writer.layer);
    const int q = node.position;
    const Index at = writer.head * backend::tri(d_.length()) + backend::tri(q);
    const HeadEdges<T> head = head_edges(edges_, graph_.start(), node);
    backend::Array query_array = d_.backend().zeros((q + 1) * cl);
    d_.backend().query_scores(d_.attention_view(writer.layer), options.scores, writer.head, q,
                              query_array);
    const auto queries = d_.backend().host(query_array);
    std::vector<double> sum(q + 1), abs(q + 1);
    d_.backend().download(sums.q_sum, at, sum);
    d_.backend().download(sums.q_abs, at, abs);
    std::vector<EntryShares> entries;
    for (int s = 0; s <= q; ++s) {
      const std::size_t i = s;
      const double share = head.entry[i];
      if (std::fabs(share) < least) continue;
      const double query_coef = base::coefficient(
          options.weights[1], share, base::inverse_denom(sum[i], abs[i], options.beta));
      const T* k = head.keys.get() + s * cl;
      const T* qs = static_cast<const T*>(queries.get()) + s * cl;
      const T* v = head.values.get() + s * cl;
      EntryShares entry;
      entry.entry = share;
      const auto add = [&](Branch branch, Index j, int position, double factor) {
        if (std::fabs(factor) >= least)
          entry.subs.push_back({branch, static_cast<int>(j), position, factor});
      };
      for (Index j = 0; j < cl; ++j) {
        add(Branch::K, j, s, head.key_coef[i] * k[j]);
        add(Branch::V, j, s, share * v[j]);
        add(Branch::Q, j, q, query_coef * qs[j]);
      }
      entries.push_back(std::move(entry));
    }
    finish(entries);
    return entries;
  }

  std::vector<EntryShares> mlp_shares(const GraphNode& node, double least) {
    const Writer& writer = d_.writers()[node.writer];
    const Options& options = edges_.options();
    const backend::MlpView view = d_.mlp_view(writer.layer);
    const LayerConfig& shape = d_.config().layer(writer.layer);
    const std::size_t n = shape.entries();
    const std::vector<double> share = entry_shares(edges_, graph_.start(), node);
    const std::vector<backend::MlpReader> readers = backend::mlp_readers(shape);
    std::vector<EntryShares> entries;
    std::vector<std::size_t> neurons;
    for (std::size_t i = 0; i < n; ++i) {
      if (std::fabs(share[i]) < least) continue;
      neurons.push_back(i);
      entries.push_back({share[i], {}});
    }
    for (std::size_t index = 0; index < readers.size() && !neurons.empty(); ++index) {
      const double weight = backend::reader_weight(options, shape, index);
      const backend::MlpReader& reader = readers[index];
      // A router reads once for all neurons of an expert.
      const bool router = reader.side == backend::MlpSide::router;
      const std::size_t width = backend::reader_entries(shape, reader.side);
      const std::size_t each = router ? shape.n_neurons : 1;
      backend::Array scores = d_.backend().zeros(view.visible * width);
      d_.backend().mlp_scores(view, reader.side, options.scores, node.position, scores);
      const auto host = d_.backend().host(scores);
      const T* rows = static_cast<const T*>(host.get());
      const bool asked = d_.neurons_when_asked(writer.layer);
      const backend::MlpSums sums = asked ? d_.mlp_at(writer.layer, reader.side, node.position)
                                          : d_.mlp(writer.layer, reader.side, options.scores);
      std::vector<double> sum(width), abs(width);
      const Index at = asked ? 0 : Index{node.position} * width;
      d_.backend().download(sums.sum, at, sum);
      d_.backend().download(sums.abs, at, abs);
      for (std::size_t i = 0; i < neurons.size(); ++i) {
        const std::size_t read = neurons[i] / each;
        const double coef = base::coefficient(
            weight, share[neurons[i]], base::inverse_denom(sum[read], abs[read], options.beta));
        for (int j = 0; j < view.visible; ++j) {
          const double factor = coef * rows[j * width + read];
          if (std::fabs(factor) >= least)
            entries[i].subs.push_back({reader.branch, j, node.position, factor});
        }
      }
    }
    finish(entries);
    return entries;
  }

  static Path unpack_key(const Key& key) {
    Path path;
    Branch own = Branch::none;
    for (std::size_t i = key.size(); i >= 3; i -= 3) {
      path.nodes.push_back({key[i - 3], key[i - 2]});
      path.branches.push_back(own);
      own = static_cast<Branch>(key[i - 1]);
    }
    return path;
  }

  bool matches(const Path& path) const {
    const PathFilter& f = graph_.filter();
    if (f.branch && path.branches.back() != *f.branch) return false;
    if (f.sign && (path.credit < 0) != (*f.sign < 0)) return false;
    if (f.suffix.from && path.nodes.front().position != *f.suffix.from) return false;
    bool passed = !f.suffix.through;
    for (const Node& node : path.nodes) {
      const Writer& writer = d_.writers()[node.writer];
      if (f.suffix.min_layer && !writer.terminal() && writer.layer < *f.suffix.min_layer)
        return false;
      passed = passed || node.writer == *f.suffix.through;
    }
    return passed;
  }

  struct Cached {
    double credit = 0;
    std::vector<EntryShares> entries;
  };

  const PathGraph<T>& graph_;
  const Edges<T>& edges_;
  const decompose::Decomposition& d_;
  double tau_;
  const RunContext& context_;
  Key key_;
  std::map<Key, double> found_;
  std::map<std::array<int, 3>, Cached> cache_;
  std::size_t walks_ = 0;
};

}  // namespace

template <typename T>
ThresholdPaths entry_paths(const PathGraph<T>& graph, double tau, std::size_t top,
                           const RunContext& context) {
  if (graph.edges().options().mlp != MlpRule::per_neuron)
    throw UsageError("tau_rule entry walks neuron by neuron: it needs mlp per-neuron");
  return EntryWalk<T>(graph, tau, context).run(top);
}

template ThresholdPaths entry_paths<float>(const PathGraph<float>&, double, std::size_t,
                                           const RunContext&);
template ThresholdPaths entry_paths<double>(const PathGraph<double>&, double, std::size_t,
                                            const RunContext&);

}  // namespace unpack::credit
