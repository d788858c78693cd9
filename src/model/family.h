// What a model family is: how its config.json reads, and a table of its tensors. No maths here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "model/config_reader.h"
#include "model/weights.h"

namespace unpack::model {

// One role's part of a stored tensor: a WeightView without its bytes.
struct TensorPart {
  Role role;
  Index start;  // first element inside the tensor
  WeightView view;
  int expert = -1;  // of a mixture
};

// A row of a family's table. `name` is the Hugging Face name with {} for the layer.
struct TensorRow {
  std::string name;
  std::vector<Index> shape;  // as stored
  std::vector<TensorPart> parts;
  std::string other_name = {};  // also found under this name
  // Stored in blocks instead, under this name followed by _blocks and _scales: MXFP4.
  bool mxfp4 = false;
};

TensorRow vector_row(std::string name, Role role, Index n);
TensorRow token_rows(std::string name, Role role, Index rows,
                     Index d_model);  // [rows, D], a row a token or position
TensorRow linear_row(std::string name, Role role, Index in,
                     Index out);  // torch Linear: stored [out, in]
TensorRow conv1d_row(std::string name, Role role, Index in,
                     Index out);  // GPT-2's Conv1D: stored [in, out]
// Several roles side by side in the columns of one Conv1D, and in its bias.
TensorRow conv1d_columns(std::string name, const std::vector<Role>& roles, Index in,
                         Index out_each);
TensorRow vector_columns(std::string name, const std::vector<Role>& roles, Index n_each);
// Several roles interleaved per head: rows of a Linear ordered [head, role, d_head], and its bias.
TensorRow linear_heads(std::string name, const std::vector<Role>& roles, Index in, Index heads,
                       Index d_head);
TensorRow vector_heads(std::string name, const std::vector<Role>& roles, Index heads, Index d_head);

// What is read is scale * (stored + shift), for all parts of a row.
TensorRow scaled(TensorRow row, double scale);
TensorRow shifted(TensorRow row, double shift);
// All parts of a row belong to one expert.
TensorRow of_expert(TensorRow row, int expert);

// 1 / sqrt(d_head), of families that say nothing else.
double usual_attention_scale(const ModelConfig& config);

// ModelConfig and what only the table needs to know.
struct FamilyConfig {
  ModelConfig model;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  double norm_shift = 0.0;  // 1: norms store their weight less 1
  double embedding_scale = 1.0;
  double residual_scale = 1.0;
  bool mxfp4 = false;
};

struct Family {
  std::string_view model_type;  // of config.json
  std::string_view prefix;      // of tensor names; checkpoints of the bare model lack it
  FamilyConfig (*read)(const ConfigReader&);
  // The rows of one layer, with {} for its number; of layer -1 those that belong to none, without
  // the output head where it is tied.
  std::vector<TensorRow> (*tensors)(const FamilyConfig&, int layer);
  TensorRow (*head)(const FamilyConfig&);
  std::string_view other_prefix = {};  // in place of `prefix` in files of a larger model
};

std::span<const Family* const> families();
// What a well-known model type has that no family here has; empty for the others.
std::string_view missing_part(std::string_view model_type);
// Throws InputError for an unknown family, a quantised checkpoint, and text that is no JSON object.
struct ParsedConfig {
  const Family* family;
  FamilyConfig config;
};
ParsedConfig parse_family_config(std::string_view config_json, const std::string& origin);

// d_model / n_heads; fails where it leaves a rest.
int derived_d_head(const ConfigReader& reader, int d_model, int n_heads);

}  // namespace unpack::model
