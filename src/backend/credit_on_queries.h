// What backends in host memory have (Backend::credit_on_queries): folding the keys of a layer with
// credit that nobody has multiplied with the coefficients yet. A long prompt has millions of these,
// and they are read once, as they are; so is every writer, with what the keys of all layers above
// it have to say.
#pragma once

#include <span>
#include <vector>

#include "backend/array.h"
#include "backend/views.h"

namespace unpack::backend {

class CreditOnQueries {
 public:
  virtual ~CreditOnQueries() = default;

  struct Credit {
    const void* coef;                // [H, tri] in host memory, of the backend's scalar
    std::span<const double> credit;  // [H, S] times them
    int query = 0;                   // and at this one
    std::span<const double> own;     // [H, query + 1], or nothing
  };
  // Adds to folded[S, D] the vectors whose products with the writers that the layer sees are
  // Backend::key_fold of credit[h, q] coef[h, tri(q) + s] + own[h, s].
  virtual void fold_keys_with(const AttentionView& view, const Credit& of,
                              std::span<double> folded) = 0;
  // out[S, end - first]: those products, of writers `first` to `end`.
  virtual void read_folded(const Array& writers, int n_writers, int first, int end,
                           std::span<const double> folded, std::vector<double>& out) = 0;
};

}  // namespace unpack::backend
