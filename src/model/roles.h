// The roles that stored matrices and vectors play in a model, and what each is to those who keep
// weights by role: nobody else lists them.
#pragma once

#include <array>
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

enum class RoleKind : std::uint8_t {
  table,        // belongs to no layer
  norm_weight,  // of the norm before a sublayer, or the last one: folded into those who read it
  norm_bias,
  matrix,
  bias,   // of a matrix
  scale,  // the weight of a norm that is applied by itself
  plain,
};

struct RoleFacts {
  RoleKind kind = RoleKind::table;
  Role bias = Role::count;    // of a matrix; count: none
  Role norm_w = Role::count;  // of the norm in front of it
  Role norm_b = Role::count;
  // A matrix whose columns are heads, a scale that may stand for every head: of queries, or of keys
  // and values.
  enum class Heads : std::uint8_t { none, queries, keys } heads = Heads::none;
};

constexpr RoleFacts facts_of(Role role) {
  const auto before_heads = [](Role bias, RoleFacts::Heads heads) {
    return RoleFacts{RoleKind::matrix, bias, Role::attn_norm_w, Role::attn_norm_b, heads};
  };
  const auto before_mlp = [](Role bias) {
    return RoleFacts{RoleKind::matrix, bias, Role::mlp_norm_w, Role::mlp_norm_b};
  };
  switch (role) {
    case Role::w_q:
      return before_heads(Role::b_q, RoleFacts::Heads::queries);
    case Role::w_k:
      return before_heads(Role::b_k, RoleFacts::Heads::keys);
    case Role::w_v:
      return before_heads(Role::b_v, RoleFacts::Heads::keys);
    case Role::w_r:
      return before_mlp(Role::b_r);
    case Role::w_in:
      return before_mlp(Role::b_in);
    case Role::w_up:
      return before_mlp(Role::b_up);
    case Role::w_o:
      return {RoleKind::matrix, Role::b_o};
    case Role::w_out:
      return {RoleKind::matrix, Role::b_out};
    case Role::b_q:
    case Role::b_k:
    case Role::b_v:
    case Role::b_o:
    case Role::b_r:
    case Role::b_in:
    case Role::b_up:
    case Role::b_out:
      return {RoleKind::bias};
    case Role::final_norm_w:
    case Role::attn_norm_w:
    case Role::mlp_norm_w:
      return {RoleKind::norm_weight};
    case Role::final_norm_b:
    case Role::attn_norm_b:
    case Role::mlp_norm_b:
      return {RoleKind::norm_bias};
    case Role::attn_post_w:
    case Role::mlp_post_w:
      return {RoleKind::scale};
    case Role::q_norm:
      return {.kind = RoleKind::scale, .heads = RoleFacts::Heads::queries};
    case Role::k_norm:
      return {.kind = RoleKind::scale, .heads = RoleFacts::Heads::keys};
    case Role::sinks:
      return {RoleKind::plain};
    case Role::embed:
    case Role::pos:
    case Role::unembed:
    case Role::count:
      return {RoleKind::table};
  }
  return {};
}

template <std::size_t kCount>
constexpr std::array<Role, kCount> roles_of(RoleKind kind) {
  std::array<Role, kCount> out{};
  std::size_t n = 0;
  for (std::size_t i = 0; i < kRoles; ++i) {
    if (facts_of(static_cast<Role>(i)).kind == kind) out[n++] = static_cast<Role>(i);
  }
  return out;
}
constexpr std::size_t count_of(RoleKind kind) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < kRoles; ++i) n += facts_of(static_cast<Role>(i)).kind == kind ? 1 : 0;
  return n;
}

// All matrices of a layer.
inline constexpr auto kMatrices = roles_of<count_of(RoleKind::matrix)>(RoleKind::matrix);
// Where a matrix stands among them; their number: it is none.
constexpr std::size_t matrix_index(Role role) {
  std::size_t i = 0;
  while (i < kMatrices.size() && kMatrices[i] != role) ++i;
  return i;
}
// What a layer, or one of its experts, keeps as a vector.
constexpr bool kept_as_vector(Role role) {
  const RoleKind kind = facts_of(role).kind;
  return kind == RoleKind::bias || kind == RoleKind::scale || kind == RoleKind::plain;
}

}  // namespace unpack::model
