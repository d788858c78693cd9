// Direction `read`: what is written once for all devices.
#include <numeric>

#include "backend/backend.h"

namespace unpack::backend {

void Backend::head_directions(const AttentionView& view, std::span<const int> queries,
                              std::span<const double> directions, std::vector<double>& out) {
  const Index width = Index{config_.n_heads} * config_.d_head;
  const Rows rows = rows_of(queries);
  const Array centered = directions_for({view.layer, model::Role::attn_post_w}, view.out_dev, rows,
                                        upload_array(directions));
  Array pulled = uninitialized(rows.count * width);
  multiply_turned({view.layer, model::Role::w_o}, block(centered, rows.count, config_.d_model),
                  block(pulled, rows.count, width));
  out.resize(pulled.size());
  download(pulled, 0, out);
}

Array Backend::slot_sums(const Array& entries, Index neurons) {
  Array out = uninitialized(entries.size() / neurons);
  launch(kernels::SlotSums<Any>{data(entries), data(out), neurons}, out.size());
  return out;
}

void Backend::neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                           std::vector<double>& out) {
  std::vector<int> all(view.length);
  std::iota(all.begin(), all.end(), 0);
  Array vectors = neurons_to_model(view, side, scores, rows_of(all), coef);
  launch(kernels::ScaleByRow<Any>{data(vectors), data(*view.dev), 0, 1, config_.d_model, 1.0},
         vectors.size());
  out.resize(vectors.size());
  download(vectors, 0, out);
}

void Backend::position_dots(const Array& writers, int n_writers, int first, int end,
                            std::span<const double> vectors, std::vector<double>& out) {
  const Index d = config_.d_model, length = static_cast<Index>(vectors.size()) / d,
              count = end - first;
  const Array given = upload_array(vectors);
  Array dots = uninitialized(length * count);
  launch(kernels::WriterDots<Any>{data(writers, first * d), n_writers, d, count, data(given), d,
                                  nullptr, 0, nullptr, 1.0, data(dots)},
         dots.size());
  out.resize(dots.size());
  download(dots, 0, out);
}

}  // namespace unpack::backend
