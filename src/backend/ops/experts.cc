// What mixtures of experts do with the rows of a batch.
#include <numeric>

#include "backend/backend.h"
#include "backend/expert_rows.h"
#include "base/index.h"

namespace unpack::backend {

Backend::Spread Backend::spread(const Routing& routing, std::span<const Index> rows) {
  Spread out;
  out.k = routing.chosen;
  out.total = rows.size() * out.k;
  const std::size_t total = out.total;
  std::vector<int> lists(4 * total);  // rows, slots, where, expert
  Index at = 0;
  for (const ExpertRows& used : by_expert(routing, rows)) {
    out.parts.push_back({used.expert, at, static_cast<Index>(used.rows.size())});
    for (std::size_t i = 0; i < used.rows.size(); ++i, ++at) {
      const Index slot = used.rows[i] * out.k + used.slots[i];
      lists[at] = used.rows[i];
      lists[total + at] = slot;
      lists[2 * total + slot] = at;
      lists[3 * total + slot] = used.expert;
    }
  }
  out.memory = upload_list(std::span<const int>(lists));
  out.rows = out.memory.get();
  out.slots = out.rows + total;
  out.where = out.slots + total;
  out.expert = out.where + total;
  return out;
}

Backend::Spread Backend::spread(const Routing& routing, Index rows) {
  std::vector<Index> all(rows);
  std::iota(all.begin(), all.end(), Index{0});
  return spread(routing, all);
}

void Backend::expert_products(int layer, const Spread& spread, MlpSide side, const View& from,
                              const View& to) {
  for (const Spread::Part& part : spread.parts) {
    const View rows{moved(from.data, part.begin * from.cols), part.count, from.cols};
    multiply({{layer, matrix_of(side), part.expert},
              {moved(to.data, part.begin * to.cols), part.count, to.cols},
              bias_of(side)},
             rows);
  }
}

void Backend::expert_products_turned(int layer, const Spread& spread, model::Role role,
                                     const View& from, const View& to) {
  for (const Spread::Part& part : spread.parts) {
    multiply_turned({layer, role, part.expert},
                    {moved(from.data, part.begin * from.cols), part.count, from.cols},
                    {moved(to.data, part.begin * to.cols), part.count, to.cols});
  }
}

void Backend::add_expert_biases(int layer, Array& x, Index rows, const Routing& routing) {
  if (!weights_->layers[layer].experts[0][model::Role::b_out]) return;
  const Index d = config_.d_model;
  const Spread s = spread(routing, rows);
  // A row of biases for every expert in use.
  std::vector<int> row_of(routing.experts, 0), index;
  Array biases = uninitialized(s.parts.size() * d);
  for (std::size_t i = 0; i < s.parts.size(); ++i) {
    const int expert = s.parts[i].expert;
    row_of[expert] = i;
    copy(vector({layer, model::Role::b_out, expert}), 0, biases, i * d, d);
  }
  for (const int expert : routing.expert) index.push_back(row_of[expert]);
  const auto at = upload_list(std::span<const int>(index));
  const Array weight = upload_array(routing.weight);
  launch(kernels::SumSlots<Any>{data(biases), at.get(), data(weight), data(x), d, s.k, 1},
         rows * d);
}

}  // namespace unpack::backend
