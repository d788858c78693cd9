// The forward pass, written once for all devices.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/backend.h"
#include "backend/rotary.h"
#include "base/index.h"
#include "model/value_checks.h"

namespace unpack::backend {

namespace {

// Logits of attention are made for so many queries at once that they stay below this.
constexpr Index kLogitBytes = Index{256} << 20;

model::Role bias_behind(Sublayer sublayer) {
  return sublayer == Sublayer::attention ? model::Role::b_o : model::Role::b_out;
}

model::Role norm_of(Sublayer sublayer) {
  return sublayer == Sublayer::attention ? model::Role::attn_post_w : model::Role::mlp_post_w;
}

}  // namespace

void Backend::check_values() {
  if (weights_->unseen) weights_->unseen->finish();
}

// The stream
// -------------------------------------------------------------------------------------------------

// In the backend's own scalar: by way of double a long prompt's rows take a tenth of a GPU's
// forward pass.
void Backend::embed_rows(model::Role table, std::span<const int> rows, Array& out) {
  constexpr std::size_t kAtOnce = 256;
  const Index d = config_.d_model;
  const auto read = [&](auto scalar) {
    std::vector<decltype(scalar)> values;
    for (std::size_t begin = 0; begin < rows.size(); begin += kAtOnce) {
      const auto some = rows.subspan(begin, std::min(kAtOnce, rows.size() - begin));
      values.resize(some.size() * d);
      for (std::size_t i = 0; i < some.size(); ++i)
        model::read_rows((*weights_)[table], some[i], 1, values.data() + i * d);
      const Array made(
          std::const_pointer_cast<void>(upload_bytes(std::as_bytes(std::span(values)))),
          std::ssize(values));
      copy(made, 0, out, begin * d, made.size());
    }
  };
  is_double() ? read(0.0) : read(0.0F);
}

void Backend::embed(std::span<const TokenId> ids, Array& out) {
  embed_rows(model::Role::embed, ids, out);
}

void Backend::embed_positions(std::span<const int> positions, Array& out) {
  embed_rows(model::Role::pos, positions, out);
}

void Backend::add(const Array& x, Array& y, Index size, double scale) {
  launch(kernels::AddScaled<Any>{data(x), data(y), scale}, size);
}

void Backend::add_rows(const Array& x, Index x_row, Array& y, Index y_row, Index rows, int cols,
                       double scale) {
  launch(kernels::AddScaled<Any>{block(x, rows, cols, x_row).data, block(y, rows, cols, y_row).data,
                                 scale},
         rows * cols);
}

void Backend::add_bias(int layer, Sublayer sublayer, Array& x, Index rows, const Array& out_dev,
                       const Routing* routing) {
  if (sublayer == Sublayer::mlp && routing != nullptr)
    return add_expert_biases(layer, x, rows, *routing);
  const Array bias = vector({layer, bias_behind(sublayer)});
  if (bias.empty()) return;
  const Array post = vector({layer, norm_of(sublayer)});
  const Index d = config_.d_model;
  launch(kernels::AddBias<Any>{data(bias), data(x), d, data(post), data(out_dev)}, rows * d);
}

// Norms
// -------------------------------------------------------------------------------------------------

void Backend::normalize(Norm kind, const Array& x, Index rows, Array& out, Array& dev) {
  const Index d = config_.d_model;
  launch(kernels::Normalize<Any>{block(x, rows, d).data, block(out, rows, d).data,
                                 block(dev, rows, 1).data, d, kind, config_.norm_eps},
         rows);
}

void Backend::norm_behind(int layer, Sublayer sublayer, Array& y, Index rows, Array& dev) {
  const Array bias = vector({layer, bias_behind(sublayer)});
  launch(kernels::Deviation<Any>{data(y), data(bias), 0, data(dev), 1, config_.d_model,
                                 config_.norm_eps},
         rows);
  through_norm_behind(layer, sublayer, dev, rows, y);
}

void Backend::through_norm_behind(int layer, Sublayer sublayer, const Array& dev, Index rows,
                                  Array& y) {
  const Array post = vector({layer, norm_of(sublayer)});
  if (post.empty()) return;
  const Index d = config_.d_model;
  launch(kernels::ThroughNorm<Any>{data(y), d, 0, 1, d, data(post), data(dev), nullptr}, rows * d);
}

// Attention
// -------------------------------------------------------------------------------------------------

std::shared_ptr<const Backend::RotaryTable> Backend::rotary(int layer, Index positions,
                                                            int context) {
  const Rope& rope = config_.layer(layer).rope;
  if (rope.dims == 0) return nullptr;
  const bool long_prompt = is_long_prompt(rope, context);
  Index known = 0;
  const auto kept = [&]() -> std::shared_ptr<const RotaryTable> {
    std::lock_guard lock(mutex_);
    known = 0;
    for (const auto& table : rotary_tables_) {
      if (table->long_prompt != long_prompt || !(table->rope == rope)) continue;
      if (table->positions >= positions) return table;
      known = std::max(known, table->positions);
    }
    return nullptr;
  };
  if (auto table = kept()) return table;
  // Made without the lock: prompts that go together join loops, and one that waits for another's
  // lock would bring none.
  const auto table = std::make_shared<RotaryTable>();
  table->rope = rope;
  table->long_prompt = long_prompt;
  table->positions = std::max<Index>({64, positions, 2 * known});
  std::vector<double> cos, sin;
  const std::vector<double> frequencies = rotary_frequencies(rope, context);
  for (Index s = 0; s < table->positions; ++s) {
    for (const double frequency : frequencies) {
      const double angle = s * frequency;
      cos.push_back(rope.amplitude * std::cos(angle));
      sin.push_back(rope.amplitude * std::sin(angle));
    }
  }
  table->cos = upload_array(cos);
  table->sin = upload_array(sin);
  if (auto another = kept()) return another;
  std::lock_guard lock(mutex_);
  return rotary_tables_.emplace_back(table);
}

void Backend::qkv(int layer, const Array& normalized, std::span<const int> positions, int context,
                  Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) {
  using model::Role;
  const Index rows = positions.size();
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head;
  // Those of queries and keys take their bias on the way to what follows.
  const std::array<Product, 3> products = {
      {{{layer, Role::w_q}, block(q, rows, heads * e)},
       {{layer, Role::w_k}, block(k, rows, groups * e)},
       {{layer, Role::w_v}, block(v, rows, groups * e), Role::b_v}}};
  multiply(products, block(normalized, rows, config_.d_model));
  const int last = positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
  const auto table = rotary(layer, last + 1, context);
  kernels::Rotary<Any> turn{};
  if (table) turn = {data(table->cos), data(table->sin), table->rope.dims / 2};
  const auto at = rows_of(positions).queries;  // which all layers share
  const bool whole = config_.layer(layer).qk_norm == QkNorm::projection;
  const auto finish = [&](Array& x, Role bias_role, Role norm_role, Array& dev, Index count) {
    const Array bias = vector({layer, bias_role}), norm = vector({layer, norm_role});
    if (bias.empty() && norm.empty() && !table) return;
    // One deviation for every head, or one for all of them.
    const bool known = whole && !norm.empty();
    if (known)
      launch(kernels::Deviation<Any>{data(x), data(bias), 1, data(dev), count, count * e,
                                     config_.norm_eps},
             rows);
    launch(kernels::FinishHead<Any>{data(x), known ? nullptr : data(bias), data(norm),
                                    norm.empty() ? nullptr : data(dev), known ? 1 : 0, at.get(),
                                    turn, count, e, config_.norm_eps},
           rows * count);
  };
  finish(q, Role::b_q, Role::q_norm, q_dev, heads);
  finish(k, Role::b_k, Role::k_norm, k_dev, groups);
}

void Backend::attention(int layer, const Array& q, const Array& k, const Array& v,
                        std::span<const Segment> segments, std::span<const Index> key_begin,
                        Array& pattern, Array& z) {
  const Index heads = config_.n_heads, e = config_.d_head, groups = config_.n_kv_heads,
              group = config_.group_size(), q_row = heads * e, kv_row = groups * e;
  const LayerConfig& shape = config_.layer(layer);
  const Array sinks = vector({layer, model::Role::sinks});
  Index pattern_begin = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const Index keys = segment.past + segment.length, key_row = key_begin[i] * kv_row;
    const Index at_once = std::clamp<Index>(
        kLogitBytes / scalar_bytes() / std::max<Index>(1, heads * keys), 1, segment.length);
    Array made = uninitialized(heads * at_once * keys);
    for (Index begin = 0; begin < segment.length; begin += at_once) {
      const Index n = std::min(at_once, segment.length - begin);
      const Index reach = segment.past + begin + n, first = (segment.begin + begin) * q_row;
      // The r-th head of every group at once.
      for (Index r = 0; r < group; ++r) {
        multiply_batch({true, n, reach, e, tail(q, first + r * e), q_row, group * e,
                        tail(k, key_row), kv_row, e, tail(made, r * n * keys), keys,
                        group * n * keys, groups});
      }
      launch(kernels::CausalSoftmax<Any>{data(made), n, keys, segment.past + begin, reach,
                                         shape.attention_scale, data(pattern, pattern_begin),
                                         tri(segment.length), begin, shape.window,
                                         shape.attention_cap, data(sinks)},
             heads * n);
      for (Index r = 0; r < group; ++r) {
        multiply_batch({false, n, e, reach, tail(made, r * n * keys), keys, group * n * keys,
                        tail(v, key_row), kv_row, e, tail(z, first + r * e), q_row, group * e,
                        groups});
      }
    }
    pattern_begin += heads * tri(segment.length);
  }
}

void Backend::attention_out(int layer, const Array& z, Index rows, Array& out) {
  multiply({{layer, model::Role::w_o}, block(out, rows, config_.d_model)},
           block(z, rows, Index{config_.n_heads} * config_.d_head));
}

// MLPs
// -------------------------------------------------------------------------------------------------

model::Role Backend::matrix_of(MlpSide side) {
  return side == MlpSide::router ? model::Role::w_r
         : side == MlpSide::up   ? model::Role::w_up
                                 : model::Role::w_in;
}

model::Role Backend::bias_of(MlpSide side) {
  return side == MlpSide::router ? model::Role::b_r
         : side == MlpSide::up   ? model::Role::b_up
                                 : model::Role::b_in;
}

void Backend::router(int layer, const Array& normalized, Index rows, Array& out) {
  multiply({{layer, model::Role::w_r},
            block(out, rows, config_.layer(layer).n_experts),
            model::Role::b_r},
           block(normalized, rows, config_.d_model));
}

void Backend::mlp_in(int layer, MlpSide side, const Array& normalized, Index rows,
                     const Routing* routing, Array& out) {
  const Index d = config_.d_model, n = config_.layer(layer).n_neurons;
  if (routing == nullptr) {
    multiply({{layer, matrix_of(side)}, block(out, rows, n), bias_of(side)},
             block(normalized, rows, d));
    return;
  }
  const Spread s = spread(*routing, rows);
  Array from = uninitialized(s.total * d), to = uninitialized(s.total * n);
  launch(kernels::TakeRows<Any>{data(normalized), s.rows, data(from), d, d}, s.total * d);
  expert_products(layer, s, side, block(from, s.total, d), block(to, s.total, n));
  launch(kernels::TakeRows<Any>{data(to), s.where, data(out), n, n}, s.total * n);
}

void Backend::activate(int layer, const Array& pre, const Array& up, const Routing* routing,
                       Index rows, Array& act) {
  const LayerConfig& shape = config_.layer(layer);
  const Array weight = routing != nullptr ? upload_array(routing->weight) : Array();
  launch(kernels::Activate<Any>{data(pre), data(up), data(act), shape.activation, data(weight),
                                shape.n_neurons},
         rows * shape.entries());
}

void Backend::mlp_out(int layer, const Array& act, Index rows, const Routing* routing, Array& out) {
  const Index d = config_.d_model, n = config_.layer(layer).n_neurons;
  if (routing == nullptr)
    return multiply({{layer, model::Role::w_out}, block(out, rows, d)}, block(act, rows, n));
  const Spread s = spread(*routing, rows);
  Array from = uninitialized(s.total * n), to = uninitialized(s.total * d);
  launch(kernels::TakeRows<Any>{data(act), s.slots, data(from), n, n}, s.total * n);
  for (const Spread::Part& part : s.parts)
    multiply({{layer, model::Role::w_out, part.expert}, block(to, part.count, d, part.begin)},
             block(from, part.count, n, part.begin));
  launch(kernels::SumSlots<Any>{data(to), s.where, nullptr, data(out), d, s.k, 0}, rows * d);
}

// Logits
// -------------------------------------------------------------------------------------------------

const Backend::FinalNorm& Backend::final_norm() {
  final_once_([&] {
    const auto read = [&](model::Role role) {
      const model::WeightView& w = (*weights_)[role];
      std::vector<double> values(w ? w.out : 0);
      if (w) model::read_rows(w, 0, 1, values.data());
      return values;
    };
    FinalNorm made;
    made.w = read(model::Role::final_norm_w);
    made.weight = upload_array(made.w);
    made.bias = upload_array(read(model::Role::final_norm_b));
    final_norm_ = std::move(made);
  });
  return final_norm_;
}

void Backend::logits(const Array& x, std::span<const Index> rows, std::vector<double>& out) {
  const Index d = config_.d_model;
  const Index n = rows.size();
  const FinalNorm& norm = final_norm();
  Array picked = uninitialized(n * d), normalized = uninitialized(n * d), dev = uninitialized(n);
  for (Index i = 0; i < n; ++i) copy(x, rows[i] * d, picked, i * d, d);
  normalize(config_.norm, picked, n, normalized, dev);
  launch(kernels::ScaleShift<Any>{data(normalized), data(norm.weight), data(norm.bias), d}, n * d);
  out.resize(n * config_.vocab_size);
  vocabulary_product(block(normalized, n, d), out);
  if (config_.logit_scale != 1.0) {
    for (double& logit : out) logit *= config_.logit_scale;
  }
}

}  // namespace unpack::backend
