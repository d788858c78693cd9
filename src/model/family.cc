#include "model/family.h"

#include <fmt/format.h>

#include <cmath>

#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "model/load.h"
#include "model/quantised.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

WeightView shape_of(Index in, Index out, Index in_stride, Index out_stride) {
  WeightView view;
  view.in = in;
  view.out = out;
  view.in_stride = in_stride;
  view.block = out;
  view.out_stride = out_stride;
  return view;
}

// Columns in blocks of d_head, each block one head's share.
WeightView head_blocks(Index in, Index heads, Index d_head, Index roles, Index in_stride,
                       Index out_stride) {
  WeightView view = shape_of(in, heads * d_head, in_stride, out_stride);
  view.block = d_head;
  view.block_stride = roles * d_head * out_stride;
  return view;
}

}  // namespace

TensorRow vector_row(std::string name, Role role, Index n) {
  return {std::move(name), {n}, {{role, 0, shape_of(1, n, n, 1)}}};
}

TensorRow token_rows(std::string name, Role role, Index rows, Index d_model) {
  return {std::move(name), {rows, d_model}, {{role, 0, shape_of(rows, d_model, d_model, 1)}}};
}

TensorRow linear_row(std::string name, Role role, Index in, Index out) {
  return {std::move(name), {out, in}, {{role, 0, shape_of(in, out, 1, in)}}};
}

TensorRow conv1d_row(std::string name, Role role, Index in, Index out) {
  return {std::move(name), {in, out}, {{role, 0, shape_of(in, out, out, 1)}}};
}

TensorRow conv1d_columns(std::string name, const std::vector<Role>& roles, Index in,
                         Index out_each) {
  const Index total = std::ssize(roles) * out_each;
  TensorRow row{std::move(name), {in, total}, {}};
  for (const Role role : roles)
    row.parts.push_back({role, std::ssize(row.parts) * out_each, shape_of(in, out_each, total, 1)});
  return row;
}

TensorRow vector_columns(std::string name, const std::vector<Role>& roles, Index n_each) {
  TensorRow row = conv1d_columns(std::move(name), roles, 1, n_each);
  row.shape.erase(row.shape.begin());
  return row;
}

TensorRow linear_heads(std::string name, const std::vector<Role>& roles, Index in, Index heads,
                       Index d_head) {
  const Index n = roles.size();
  TensorRow row{std::move(name), {n * heads * d_head, in}, {}};
  for (const Role role : roles) {
    row.parts.push_back(
        {role, std::ssize(row.parts) * d_head * in, head_blocks(in, heads, d_head, n, 1, in)});
  }
  return row;
}

TensorRow vector_heads(std::string name, const std::vector<Role>& roles, Index heads,
                       Index d_head) {
  const Index n = roles.size();
  TensorRow row{std::move(name), {n * heads * d_head}, {}};
  for (const Role role : roles) {
    row.parts.push_back({role, std::ssize(row.parts) * d_head,
                         head_blocks(1, heads, d_head, n, n * heads * d_head, 1)});
  }
  return row;
}

TensorRow scaled(TensorRow row, double scale) {
  for (TensorPart& part : row.parts) part.view.scale = scale;
  return row;
}

TensorRow shifted(TensorRow row, double shift) {
  for (TensorPart& part : row.parts) part.view.shift = shift;
  return row;
}

TensorRow of_expert(TensorRow row, int expert) {
  for (TensorPart& part : row.parts) part.expert = expert;
  return row;
}

int derived_d_head(const ConfigReader& reader, int d_model, int n_heads) {
  if (d_model % n_heads != 0)
    reader.fail(fmt::format("{} heads do not divide the width {} evenly", n_heads, d_model));
  return d_model / n_heads;
}

ParsedConfig parse_family_config(std::string_view config_json, const std::string& origin) {
  const JsonValue root = base::read_json(config_json, origin);
  if (!root.is_object()) throw InputError(fmt::format("{}: expected a JSON object", origin));
  const ConfigReader reader(root, origin);
  std::string known;
  for (const Family* family : families())
    known += (known.empty() ? "" : ", ") + std::string(family->model_type);

  const std::string type = reader.text("model_type", "");
  if (type.empty()) reader.fail(fmt::format("model_type is missing (supported: {})", known));
  for (const Family* family : families()) {
    if (family->model_type != type) continue;
    ParsedConfig parsed{family, {}};
    read_quantisation(reader, type);  // refuses what cannot be read
    parsed.config = family->read(reader);
    parsed.config.model.family = type;
    parsed.config.model.dtype = read_dtype(reader);
    check_shape(reader, parsed.config.model);
    return parsed;
  }
  const std::string_view missing = missing_part(type);
  reader.fail(fmt::format("model family {} is not supported{}{} (supported: {})", base::shown(type),
                          missing.empty() ? "" : ": it has ", missing, known));
}

ModelConfig parse_config(std::string_view config_json, const std::string& origin) {
  return parse_family_config(config_json, origin).config.model;
}

double usual_attention_scale(const ModelConfig& config) { return 1.0 / std::sqrt(config.d_head); }

}  // namespace unpack::model
