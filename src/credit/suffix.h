// What can still come below a node: absolute path mass and the largest path product, bottom-up over
// all edges, for all paths and for those that match the filters. Exact, so that they serve as
// totals, as masses of the composition ranking and as bounds of the path search.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "credit/edges.h"
#include "unpack/options.h"

namespace unpack::credit {

// Filters on what lies below the root side, resolved to indices. The branch of the last hop is not
// among them: it concerns the start alone.
struct SuffixFilter {
  std::optional<int> through;  // writer
  std::optional<int> from;     // position
  std::optional<int> min_layer;
  bool by_sign = false;  // keep products of either sign apart

  bool any() const { return through || from || min_layer; }
};

// States a suffix is asked for in: whether it must still pass `through`, and the sign its product
// must have.
struct SuffixState {
  bool must_pass = false;
  bool negative = false;
};

class Suffix {
 public:
  template <typename T>
  static Suffix compute(const Edges<T>& edges, const SuffixFilter& filter,
                        const RunContext& context);

  const SuffixFilter& filter() const { return filter_; }
  double mass_all(int position, int writer) const { return all_[at(position, writer)]; }
  double mass(SuffixState state, int position, int writer) const {
    return slot(state).mass[at(position, writer)];
  }
  double bound(SuffixState state, int position, int writer) const {
    return slot(state).bound[at(position, writer)];
  }
  // Rows of consecutive writers at a position.
  const double* mass_all_row(int position) const { return all_.data() + at(position, 0); }
  const double* bound_row(SuffixState state, int position) const {
    return slot(state).bound.data() + at(position, 0);
  }

 private:
  struct Slot {
    std::vector<double> mass, bound;  // [S, C]; without by_sign only the positive slots are filled,
                                      // and stand for both signs
  };
  std::size_t at(int position, int writer) const { return position * writers_ + writer; }
  const Slot& slot(SuffixState state) const {
    return slots_[(state.must_pass ? 2U : 0U) + (state.negative && filter_.by_sign ? 1U : 0U)];
  }

  template <typename T>
  friend class SuffixBuilder;

  SuffixFilter filter_;
  std::size_t writers_ = 0;
  std::vector<double> all_;
  std::array<Slot, 4> slots_;
};

template <typename T>
class SuffixBuilder;

// The suffix without a filter, made while edges are built, so that the key scores of a long prompt
// are made once for their sums and for what they lead to.
template <typename T>
class SuffixAlong : public EdgesCompanion<T> {
 public:
  explicit SuffixAlong(const decompose::Decomposition& d);
  ~SuffixAlong() override;
  SuffixAlong(const SuffixAlong&) = delete;
  SuffixAlong& operator=(const SuffixAlong&) = delete;

  backend::AttentionSums sums(int layer) override;
  void built(const Edges<T>& edges, int layer) override;
  void built(backend::DeviceCredit& device, const backend::DeviceCredit::Layer& layer,
             Scores scores) override;
  // Null where the edges were built without it.
  std::shared_ptr<const Suffix> take();

 private:
  const decompose::Decomposition& d_;
  std::unique_ptr<SuffixBuilder<T>> builder_;
  backend::Backend::PairReach reach_;
  bool known_ = false;
  int layers_ = 0;
};

}  // namespace unpack::credit
