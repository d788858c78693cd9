#include "forward/check_finite.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/index.h"
#include "unpack/error.h"

namespace unpack::forward {
namespace {

// The first row with a value that is not finite; -1: none.
Index bad_row(backend::Backend& backend, const backend::Array& array, Index rows) {
  if (array.empty() || rows == 0) return -1;
  std::vector<double> values(array.size());
  backend.download(array, 0, values);
  const std::size_t width = values.size() / rows;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return i / width;
  }
  return -1;
}

[[noreturn]] void fail(const std::string& where, Index row) {
  throw InputError(fmt::format(
      "{} at position {} is not a finite number: the weights drive the arithmetic out of its range "
      "(device reference computes in double precision)",
      where, row));
}

}  // namespace

bool stream_is_finite(backend::Backend& backend, const ForwardPass& pass) {
  if (const std::optional<bool> known = backend.all_finite(pass.x_final)) return *known;
  return bad_row(backend, pass.x_final, pass.rows()) < 0;
}

void check_finite(backend::Backend& backend, const ForwardPass& pass) {
  if (stream_is_finite(backend, pass)) return;
  const auto check = [&](const backend::Array& array, const std::string& where) {
    if (const Index row = bad_row(backend, array, pass.rows()); row >= 0) fail(where, row);
  };
  check(pass.emb, "the token embedding");
  check(pass.pos, "the position embedding");
  for (std::size_t l = 0; l < pass.layers.size(); ++l) {
    const LayerPass& layer = pass.layers[l];
    const auto named = [&](const char* what) { return fmt::format("{} of layer {}", what, l); };
    check(layer.x_pre, named("the residual stream in front"));
    check(layer.q, named("the query"));
    check(layer.k, named("the key"));
    check(layer.v, named("the value"));
    check(layer.z, named("the mixed value"));
    check(layer.attn_out, named("the attention output"));
    check(layer.pre, named("the MLP's pre-activation"));
    check(layer.act, named("the MLP's activation"));
    check(layer.mlp_out, named("the MLP output"));
  }
  check(pass.x_final, "the residual stream behind the last layer");
}

}  // namespace unpack::forward
