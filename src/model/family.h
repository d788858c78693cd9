// What a model family is: how its config.json reads, and a table of its tensors. No maths here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "model/weights.h"

namespace unpack {

// Where a matrix or vector goes in ModelWeights / LayerWeights; the fields there carry the same
// names.
enum class Role {
  embed,
  pos,
  final_norm_w,
  final_norm_b,
  unembed,
  attn_norm_w,
  attn_norm_b,
  mlp_norm_w,
  mlp_norm_b,
  w_q,
  w_k,
  w_v,
  b_q,
  b_k,
  b_v,
  w_o,
  b_o,
  q_norm,
  k_norm,
  w_in,
  w_up,
  b_in,
  b_up,
  w_out,
  b_out,
};

// One role's part of a stored tensor: a WeightView without its bytes.
struct TensorPart {
  Role role;
  std::int64_t start;  // first element inside the tensor
  WeightView view;
};

// A row of a family's table. `name` is the Hugging Face name with {} for the layer.
struct TensorRow {
  std::string name;
  std::vector<std::int64_t> shape;  // as stored
  std::vector<TensorPart> parts;
  std::string other_name = {};  // also found under this name

  bool per_layer() const { return name.find("{}") != std::string::npos; }
};

TensorRow vector_row(std::string name, Role role, std::int64_t n);
TensorRow token_rows(std::string name, Role role, std::int64_t rows,
                     std::int64_t d_model);  // [rows, D], a row a token or position
TensorRow linear_row(std::string name, Role role, std::int64_t in,
                     std::int64_t out);  // torch Linear: stored [out, in]
TensorRow conv1d_row(std::string name, Role role, std::int64_t in,
                     std::int64_t out);  // GPT-2's Conv1D: stored [in, out]
// Several roles side by side in the columns of one Conv1D, and in its bias.
TensorRow conv1d_columns(std::string name, const std::vector<Role>& roles, std::int64_t in,
                         std::int64_t out_each);
TensorRow vector_columns(std::string name, const std::vector<Role>& roles, std::int64_t n_each);
// Several roles interleaved per head: rows of a Linear ordered [head, role, d_head], and its bias.
TensorRow linear_heads(std::string name, const std::vector<Role>& roles, std::int64_t in,
                       std::int64_t heads, std::int64_t d_head);
TensorRow vector_heads(std::string name, const std::vector<Role>& roles, std::int64_t heads,
                       std::int64_t d_head);

// ModelConfig and what only the table needs to know.
struct FamilyConfig {
  ModelConfig model;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
};

struct Family {
  std::string_view model_type;  // of config.json
  std::string_view prefix;      // of tensor names; checkpoints of the bare model lack it
  FamilyConfig (*read)(const ConfigReader&);
  std::vector<TensorRow> (*tensors)(
      const FamilyConfig&);  // without the output head where it is tied
  TensorRow (*head)(const FamilyConfig&);
};

std::span<const Family* const> families();
// Throws InputError for an unknown family, a quantised checkpoint, and text that is no JSON object.
struct ParsedConfig {
  const Family* family;
  FamilyConfig config;
};
ParsedConfig parse_family_config(std::string_view config_json, const std::string& origin);

// d_model / n_heads; fails where it leaves a rest.
int derived_d_head(const ConfigReader& reader, int d_model, int n_heads);

}  // namespace unpack
