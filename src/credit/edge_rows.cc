// What Edges has of single nodes: taken from what is kept, fetched from a device, or made again.
#include <cmath>

#include "base/index.h"
#include "credit/edges.h"
#include "credit/safe_denom.h"

namespace unpack::credit {

namespace {

template <typename T>
std::shared_ptr<const T> fetched(backend::Backend& backend, const backend::Array& array, Index at,
                                 Index size) {
  const auto host = backend.host(backend.slice(array, at, size));
  return {host, static_cast<const T*>(host.get())};
}

}  // namespace

template <typename T>
std::shared_ptr<const T> Edges<T>::query_row(int layer, int head, int query) const {
  const Index cl = decomposition_->writers().visible_to_attention(layer),
              at = (Index{head} * decomposition_->length() + query) * cl;
  if (by_layer())
    return fetched<T>(decomposition_->backend(), device_layers_[layer].heads.query_edge, at, cl);
  return {std::shared_ptr<const void>(), layers_[layer].query_edge.data() + at};
}

template <typename T>
std::shared_ptr<const T> Edges<T>::value_rows(int layer, int group, int query) const {
  const Index cl = decomposition_->writers().visible_to_attention(layer),
              at = Index{group} * decomposition_->length() * cl;
  if (by_layer())
    return fetched<T>(decomposition_->backend(), device_layers_[layer].heads.value_edge, at,
                      (Index{query} + 1) * cl);
  return {std::shared_ptr<const void>(), layers_[layer].value_edge.data() + at};
}

// Of a prompt that is traced layer by layer: shares of what the head takes from its sources, and
// sums over the writers of the scores given.
template <typename T>
HeadRow<T> Edges<T>::row_made_again(int layer, int head, int query, const T* keys) const {
  const decompose::Decomposition& d = *decomposition_;
  const std::size_t n = query + 1, cl = d.writers().visible_to_attention(layer), own = head;
  const Index width = d.config().d_model;
  backend::Array numerators, pattern;
  d.backend().head_numerators_at(
      d.attention_view(layer), query,
      d.backend().slice(d.kept_pass().layers[layer].attn_out, query * width, width), numerators,
      pattern);
  const bool gate = options_.dispatch == Dispatch::gate;
  const auto row = fetched<T>(d.backend(), gate ? pattern : numerators, own * n, n);
  std::vector<double> share(row.get(), row.get() + n);
  if (!gate) to_shares(share.data(), n, options_.beta);
  auto entry = std::make_shared<std::vector<T>>(n), coef = std::make_shared<std::vector<T>>(n);
  for (std::size_t s = 0; s < n; ++s) {
    double sum = 0, size = 0;
    for (std::size_t j = 0; j < cl; ++j) {
      const double score = keys[s * cl + j];
      sum += score;
      size += std::fabs(score);
    }
    (*entry)[s] = share[s];
    (*coef)[s] = base::coefficient(options_.weights[0], share[s],
                                   base::inverse_denom(sum, size, options_.beta));
  }
  return {{entry, entry->data()}, {coef, coef->data()}};
}

template <typename T>
HeadRow<T> Edges<T>::head_row(int layer, int head, int query,
                              const std::shared_ptr<const T>& keys) const {
  if (by_layer()) return row_made_again(layer, head, query, keys.get());
  const LayerEdges<T>& e = layers_[layer];
  const Index at = head * backend::tri(decomposition_->length()) + backend::tri(query);
  std::unique_lock lock(mutex_);
  if (!e.entry.empty()) {
    const std::shared_ptr<const void> none;
    return {{none, e.entry.data() + at}, {none, e.key_coef.data() + at}};
  }
  lock.unlock();
  backend::Backend& backend = decomposition_->backend();
  const backend::DeviceCredit::HeadEdges& from = device_layers_[layer].heads;
  return {fetched<T>(backend, from.entry, at, query + 1),
          fetched<T>(backend, from.key_coef, at, query + 1)};
}

template <typename T>
std::shared_ptr<const T> Edges<T>::key_rows(int layer, int head, int query) const {
  const decompose::Decomposition& d = *decomposition_;
  const Index cl = d.writers().visible_to_attention(layer);
  if (has_table()) {
    const Index at = (head * backend::tri(d.length()) + backend::tri(query)) * cl;
    if (tables_.empty()) {
      const auto rows = d.backend().host(
          d.backend().slice(d.attention(layer, options_.scores).k_scores, at, (query + 1) * cl));
      return {rows, static_cast<const T*>(rows.get())};
    }
    const auto& table = tables_[layer];
    return {table, static_cast<const T*>(table.get()) + at};
  }
  backend::Array out = d.backend().zeros((query + 1) * cl);
  d.backend().key_scores(d.attention_view(layer), options_.scores, head, query, out);
  const auto rows = d.backend().host(out);
  return {rows, static_cast<const T*>(rows.get())};
}

template <typename T>
std::shared_ptr<const T> Edges<T>::key_rows_of_heads(int layer, int query) const {
  const decompose::Decomposition& d = *decomposition_;
  const Index cl = d.writers().visible_to_attention(layer);
  backend::Array out = d.backend().zeros(d.config().n_heads * (Index{query} + 1) * cl);
  d.backend().key_scores_of_heads(d.attention_view(layer), options_.scores, query, out);
  const auto rows = d.backend().host(out);
  return {rows, static_cast<const T*>(rows.get())};
}

template <typename T>
void Edges<T>::visit_keys(int layer, const std::function<void(int, int, const T*)>& visit) const {
  const decompose::Decomposition& d = *decomposition_;
  if (!has_table()) {
    d.backend().visit_key_scores(
        d.attention_view(layer), options_.scores,
        [&](int h, int q, const void* rows) { visit(h, q, static_cast<const T*>(rows)); });
    return;
  }
  const auto table = tables_.empty()
                         ? d.backend().host(d.attention(layer, options_.scores).k_scores)
                         : tables_[layer];
  const Index cl = d.writers().visible_to_attention(layer);
  const Index length = d.length();
  d.backend().parallel_for(d.config().n_heads * length, [&](Index task) {
    const Index h = task / length;
    const Index q = task % length;
    visit(static_cast<int>(h), static_cast<int>(q),
          static_cast<const T*>(table.get()) + (h * backend::tri(length) + backend::tri(q)) * cl);
  });
}

template HeadRow<float> Edges<float>::row_made_again(int, int, int, const float*) const;
template HeadRow<float> Edges<float>::head_row(int, int, int,
                                               const std::shared_ptr<const float>&) const;
template std::shared_ptr<const float> Edges<float>::query_row(int, int, int) const;
template std::shared_ptr<const float> Edges<float>::value_rows(int, int, int) const;
template std::shared_ptr<const float> Edges<float>::key_rows(int, int, int) const;
template std::shared_ptr<const float> Edges<float>::key_rows_of_heads(int, int) const;
template void Edges<float>::visit_keys(int,
                                       const std::function<void(int, int, const float*)>&) const;
template HeadRow<double> Edges<double>::row_made_again(int, int, int, const double*) const;
template HeadRow<double> Edges<double>::head_row(int, int, int,
                                                 const std::shared_ptr<const double>&) const;
template std::shared_ptr<const double> Edges<double>::query_row(int, int, int) const;
template std::shared_ptr<const double> Edges<double>::value_rows(int, int, int) const;
template std::shared_ptr<const double> Edges<double>::key_rows(int, int, int) const;
template std::shared_ptr<const double> Edges<double>::key_rows_of_heads(int, int) const;
template void Edges<double>::visit_keys(int,
                                        const std::function<void(int, int, const double*)>&) const;

}  // namespace unpack::credit
