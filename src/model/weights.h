// Weights as the maths wants them, as views on what is stored. Nothing here is converted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor/convert.h"
#include "unpack/config.h"

namespace unpack {

// A tensor as a source holds it. `data` may be unaligned.
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// A matrix [in, out] inside a stored tensor: element (i, o) is data[i * in_stride + (o / block) *
// block_stride + (o % block) * out_stride], counted in elements. The block level expresses
// GPT-NeoX's [head, (q,k,v), d_head] rows.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t in_stride = 0;
  std::int64_t block = 1;  // columns per block
  std::int64_t block_stride = 0;
  std::int64_t out_stride = 0;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t offset(std::int64_t i, std::int64_t o) const {
    return i * in_stride + (o / block) * block_stride + (o % block) * out_stride;
  }
  double at(std::int64_t i, std::int64_t o) const;  // slow; for tests and small vectors
};

// Rows [row, row + n) of the view as scalars, row-major [n, out]; fast where columns or rows are
// contiguous.
void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, float* out);
void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, double* out);

// Vectors are views with in == 1.
struct NormWeights {
  WeightView w;  // [1, D]
  WeightView b;  // [1, D]; empty for RMSNorm
};

struct LayerWeights {
  NormWeights attn_norm, mlp_norm;
  WeightView w_q;             // [D, H*E]
  WeightView w_k, w_v;        // [D, G*E]
  WeightView b_q, b_k, b_v;   // [1, ...] or empty
  WeightView w_o;             // [H*E, D]
  WeightView b_o;             // [1, D] or empty
  WeightView q_norm, k_norm;  // [1, E] or empty (Qwen3)
  WeightView w_in;            // [D, N]: the only one of a plain MLP, the gate of a gated one
  WeightView w_up;            // [D, N], gated only
  WeightView b_in, b_up;      // [1, N] or empty
  WeightView w_out;           // [N, D]
  WeightView b_out;           // [1, D] or empty
};

struct ModelWeights {
  ModelConfig config;
  WeightView embed;  // [V, D], a row a token
  WeightView pos;    // [n_ctx, D] or empty
  NormWeights final_norm;
  WeightView unembed;  // [V, D], a row a token (logits = x unembed^T)
  std::vector<LayerWeights> layers;
  std::string fingerprint;              // fast hash of headers and samples of every tensor
  std::shared_ptr<const void> storage;  // keeps the bytes alive
  // Tells the source that the pages behind a view were copied elsewhere and may be dropped (files
  // only).
  void (*release)(const void* storage, const std::byte* data, std::size_t bytes) = nullptr;

  std::size_t parameter_count() const;
};

}  // namespace unpack
