// The roles that stored matrices and vectors play in a model.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unpack::model {

// Matrices are [in, out], vectors [1, n]; empty views where a model has none.
enum class Role : std::uint8_t {
  embed,         // [V, D], a row a token
  pos,           // [n_ctx, D]
  final_norm_w,  // [D]
  final_norm_b,
  unembed,      // [V, D], a row a token
  attn_norm_w,  // [D] of the norm before a sublayer
  attn_norm_b,
  mlp_norm_w,
  mlp_norm_b,
  attn_post_w,  // [D] of the norm behind a sublayer
  mlp_post_w,
  w_q,  // [D, H*E]
  w_k,  // [D, G*E]
  w_v,
  b_q,
  b_k,
  b_v,
  w_o,     // [H*E, D]
  b_o,     // [D]
  q_norm,  // [E] of every head, or [H*E]
  k_norm,
  sinks,  // [H]
  w_r,    // [D, experts] the router
  b_r,
  w_in,  // [D, N] the only one of a plain MLP, the gate of a gated one
  w_up,
  b_in,  // [N]
  b_up,
  w_out,  // [N, D]
  b_out,  // [D]
  count,
};

inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::count);

}  // namespace unpack::model
