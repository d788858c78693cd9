// What positions take from their sources and neurons, in the direction of a layer's outputs or of a
// target.
#include <numeric>

#include "backend/device_memory.h"
#include "base/index.h"
#include "decompose/decomposition.h"

namespace unpack::decompose {

namespace {

// A device writes every element; clearing it first would be one more launch.
backend::Array fresh(backend::Backend& backend, Index size) {
  return backend.device_memory() != nullptr ? backend.uninitialized(size) : backend.zeros(size);
}

}  // namespace

// Long prompts have no room for them; they are cheap to make again.
backend::Array Decomposition::kept_numerators(
    Lazy<backend::Array>& lazy, int layer, const std::function<backend::Array(int)>& make) const {
  return keeps_.numerators ? kept(lazy, layer, make) : make(layer);
}

backend::Array Decomposition::head_numerators(int layer) const {
  walked();
  return kept_numerators(head_numerators_, layer, [&](int l) { return make_head_numerators(l); });
}

backend::Array Decomposition::mlp_numerators(int layer) const {
  walked();
  if (neurons_when_asked(layer)) return make_mlp_numerators(layer);
  return kept_numerators(mlp_numerators_, layer, [&](int l) {
    return neurons_when_asked(l) ? backend::Array() : make_mlp_numerators(l);
  });
}

backend::Array Decomposition::make_head_numerators(int layer) const {
  enter(layer);
  std::vector<int> queries(length_);
  std::iota(queries.begin(), queries.end(), 0);
  backend::Array out = fresh(*backend_, config().n_heads * backend::tri(length_));
  backend_->head_numerators(attention_view(layer), queries, pass_.layers[layer].attn_out, out);
  return out;
}

backend::Array Decomposition::make_mlp_numerators(int layer) const {
  enter(layer);
  std::vector<int> queries(length_);
  std::iota(queries.begin(), queries.end(), 0);
  backend::Array out = fresh(*backend_, Index{length_} * config().layer(layer).entries());
  backend_->mlp_numerators(mlp_view(layer), queries, pass_.layers[layer].mlp_out, out);
  return out;
}

Decomposition::DirectNumerators Decomposition::direct_numerators(
    int layer, int query, const backend::Array& direction) const {
  const std::size_t l = layer;
  std::vector<double> wanted(config().d_model);
  backend_->download(direction, 0, wanted);
  {
    std::lock_guard lock(direct_.mutex);
    if (direct_.query != query || direct_.direction != wanted) {
      direct_.query = query;
      direct_.direction = wanted;
      direct_.layers.assign(pass_.layers.size(), nullptr);
    }
    if (direct_.layers[l]) return *direct_.layers[l];
  }
  const std::vector<int> queries = {query};
  DirectNumerators made;
  const auto downloaded = [&](const backend::Array& from) {
    std::vector<double> out(from.size());
    backend_->download(from, 0, out);
    return out;
  };
  backend::Array heads = backend_->zeros(static_cast<Index>(config().n_heads) * (query + 1));
  backend_->head_numerators(attention_view(layer), queries, direction, heads);
  made.heads = downloaded(heads);
  backend::Array neurons = backend_->zeros(config().layer(layer).entries());
  backend_->mlp_numerators(mlp_view(layer), queries, direction, neurons);
  made.neurons = downloaded(neurons);
  std::lock_guard lock(direct_.mutex);
  if (direct_.query == query && direct_.direction == wanted)
    direct_.layers[l] = std::make_shared<const DirectNumerators>(made);
  return made;
}

}  // namespace unpack::decompose
