// From a program to weights: a GPT-2 with ReLU neurons and learned positions, or a Llama with SiLU
// gates and rotary positions.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "experiments/compiled/program.h"
#include "unpack/model.h"

namespace unpack::experiments::compiled {

// Row-major [in, out], rounded to float32 as the engine will see it.
struct Matrix {
  int rows = 0, cols = 0;
  std::vector<double> values;
  Matrix() = default;
  Matrix(int r, int c) : rows(r), cols(c), values(static_cast<std::size_t>(r) * c, 0.0) {}
  double& operator()(int r, int c) { return values[static_cast<std::size_t>(r) * cols + c]; }
  double operator()(int r, int c) const { return values[static_cast<std::size_t>(r) * cols + c]; }
  const double* row(int r) const { return values.data() + static_cast<std::size_t>(r) * cols; }
};

struct LayerMatrices {
  Matrix w_q, w_k, w_v, w_o;  // [D, H E], w_o [H E, D]
  Matrix w_in, w_up, w_out;   // [D, N], [N, D]; w_up: Llama
  std::vector<double> b_in;   // [N], GPT-2
};

struct CompiledModel {
  Format format = Format::gpt2;
  int d_model = 0, n_heads = 0, d_head = 0, d_mlp = 0, vocabulary = 0, length = 0;
  Matrix embed, pos, unembed;  // [V, D], [S, D], [V, D]
  std::vector<double> norm;    // [D] weight of every norm
  std::vector<LayerMatrices> layers;
  double theta = 1e16;
  double eps = 1e-5;

  int n_layers() const { return layers.size(); }
  std::string config_json() const;
  std::map<std::string, std::vector<float>> tensors(
      std::map<std::string, std::vector<std::int64_t>>& shapes) const;
  Model open(const LoadOptions& load) const;
  void save(const std::filesystem::path& folder) const;  // a Hugging Face folder
};

CompiledModel compile(const Program& program, const Settings& settings);

}  // namespace unpack::experiments::compiled
