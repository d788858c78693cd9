// Memory, weights and the forward pass on a device.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/weight_copy.h"
#include "backend/rotary.h"

namespace unpack::backend::cuda {

namespace {

// Logits of attention are made for so many queries at once that they stay below this.
constexpr std::int64_t kLogitBytes = std::int64_t{256} << 20;

std::vector<float> vector_of(const model::WeightView& w) {
  std::vector<float> out(static_cast<std::size_t>(w ? w.out : 0));
  if (w) model::read_rows(w, 0, 1, out.data());
  return out;
}

}  // namespace

CudaBackend::CudaBackend(std::shared_ptr<Device> device,
                         std::shared_ptr<const model::ModelWeights> weights,
                         const BackendOptions& options, std::string name)
    : device_(std::move(device)),
      weights_(std::move(weights)),
      on_device_(device_, weights_),
      split_(device_, options.tf32         ? SplitProducts::Mode::tf32
                      : options.exact_fp32 ? SplitProducts::Mode::single
                                           : SplitProducts::Mode::parts),
      pool_(options.threads),
      name_(std::move(name)) {
  config_ = weights_->config;
  const UnpackDeviceInfo info = device_->info();
  tile_bytes_ = info.tile_bytes;
  details_ =
      fmt::format("{}, {:.0f} GiB{}", info.name, static_cast<double>(info.memory_total) / (1 << 30),
                  on_device_.streams() ? ", layers uploaded as they are needed"
                  : config_.mixture()  ? ", experts uploaded as they are used"
                                       : "");
  const std::vector<float> w = vector_of((*weights_)[model::Role::final_norm_w]),
                           b = vector_of((*weights_)[model::Role::final_norm_b]);
  final_w_.assign(w.begin(), w.end());
  final_w_device_ = device_->floats(static_cast<std::int64_t>(w.size()));
  device_->to_device(final_w_device_.raw(), w.data(), w.size() * sizeof(float));
  if (!b.empty()) {
    final_b_device_ = device_->floats(static_cast<std::int64_t>(b.size()));
    device_->to_device(final_b_device_.raw(), b.data(), b.size() * sizeof(float));
  }
}

DeviceMemory::Use CudaBackend::memory_use(bool start_again) {
  const UnpackDeviceMemory use = device_->memory_use(start_again);
  return {use.peak, use.held};
}

std::uint64_t CudaBackend::room_for_prompts() {
  const std::uint64_t free = device_->memory_free(), weights = on_device_.still_to_come();
  return free > weights ? free - weights : 0;
}

float CudaBackend::head_scale(int layer) const {
  return static_cast<float>(config_.layer(layer).attention_scale);
}

// Memory
// --------------------------------------------------------------------------------------------------------------------------

Array CudaBackend::slice(const Array& from, std::int64_t offset, std::int64_t size) {
  return Array(std::shared_ptr<void>(std::make_shared<Array>(from), ptr(from) + offset), size);
}

void CudaBackend::upload(Array& to, std::int64_t offset, std::span<const double> from) {
  const std::vector<float> single(from.begin(), from.end());
  device_->to_device(ptr(to) + offset, single.data(), single.size() * sizeof(float));
}

void CudaBackend::download(const Array& from, std::int64_t offset, std::span<double> to) {
  std::vector<float> single(to.size());
  device_->to_host(single.data(), ptr(from) + offset, single.size() * sizeof(float));
  std::copy(single.begin(), single.end(), to.begin());
}

void CudaBackend::copy(const Array& from, std::int64_t from_offset, Array& to,
                       std::int64_t to_offset, std::int64_t size) {
  device_->copy(ptr(to) + to_offset, ptr(from) + from_offset,
                static_cast<std::size_t>(size) * sizeof(float));
}

std::shared_ptr<const void> CudaBackend::host(const Array& from) {
  const std::size_t bytes = static_cast<std::size_t>(from.size()) * sizeof(float);
  std::shared_ptr<void> memory(std::malloc(std::max<std::size_t>(bytes, 1)), std::free);
  if (!memory)
    throw InputError(fmt::format(
        "not enough memory for {} MiB; use a shorter prompt or a smaller model", bytes >> 20));
  device_->to_host(memory.get(), from.raw(), bytes);
  return memory;
}

// Products with weights
// -----------------------------------------------------------------------------------------------------------

void CudaBackend::multiply(const DeviceMatrix& w, const float* a, std::int64_t m, float* c) {
  const Operand x = on_device_.operand(w);
  device_->gemm(
      {x.turned ? 1 : 0, 0, m, x.out, x.in, a, x.in, 0, x.data, x.ld(), 0, c, x.out, 0, 1});
}

void CudaBackend::multiply_turned(const DeviceMatrix& w, const float* a, std::int64_t m, float* c) {
  const Operand x = on_device_.operand(w);
  device_->gemm(
      {x.turned ? 0 : 1, 0, m, x.in, x.out, a, x.out, 0, x.data, x.ld(), 0, c, x.in, 0, 1});
}

void CudaBackend::heads_to_model(const Operand& w, int heads, const float* a, std::int64_t m,
                                 float* c) {
  // Heads of one group share their columns: the r-th head of every group at once.
  const std::int64_t e = config_.d_head, d = w.in;
  const std::int64_t groups = w.out / e;
  const std::int64_t group = heads / groups;
  for (std::int64_t r = 0; r < group; ++r) {
    device_->gemm({w.turned ? 0 : 1, 0, m, d, e, a + r * e, heads * e, group * e, w.data, w.ld(),
                   w.column(e) - w.data, c + r * d, heads * d, group * d, groups});
  }
}

// Forward pass
// --------------------------------------------------------------------------------------------------------------------

void CudaBackend::embed(std::span<const TokenId> ids, Array& out) {
  const auto d = static_cast<std::size_t>(config_.d_model);
  std::vector<float> rows(ids.size() * d);
  for (std::size_t i = 0; i < ids.size(); ++i)
    model::read_rows((*weights_)[model::Role::embed], ids[i], 1, rows.data() + i * d);
  device_->to_device(out.raw(), rows.data(), rows.size() * sizeof(float));
}

void CudaBackend::embed_positions(std::span<const int> positions, Array& out) {
  const auto d = static_cast<std::size_t>(config_.d_model);
  std::vector<float> rows(positions.size() * d);
  for (std::size_t i = 0; i < positions.size(); ++i)
    model::read_rows((*weights_)[model::Role::pos], positions[i], 1, rows.data() + i * d);
  device_->to_device(out.raw(), rows.data(), rows.size() * sizeof(float));
}

void CudaBackend::add(const Array& x, Array& y, std::int64_t size, double scale) {
  device_->launch(AddScaled{ptr(x), ptr(y), static_cast<float>(scale)}, size);
}

void CudaBackend::add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row,
                           std::int64_t rows, int cols, double scale) {
  device_->launch(
      AddScaled{ptr(x) + x_row * cols, ptr(y) + y_row * cols, static_cast<float>(scale)},
      rows * cols);
}

void CudaBackend::add_bias(int index, Sublayer sublayer, Array& x, std::int64_t rows,
                           const Array& out_dev, const Routing* routing) {
  const auto w = on_device_.layer(index);
  const std::int64_t d = config_.d_model;
  const bool attention = sublayer == Sublayer::attention;
  if (!attention && routing != nullptr) return add_expert_biases(index, x, rows, *routing);
  const Array& bias = w->vector(attention ? model::Role::b_o : model::Role::b_out);
  const Array& post = w->vector(attention ? model::Role::attn_post_w : model::Role::mlp_post_w);
  if (bias.empty()) return;
  device_->launch(AddBias{ptr(bias), ptr(x), d, maybe(post), maybe(out_dev)}, rows * d);
}

void CudaBackend::normalize(Norm kind, const Array& x, std::int64_t rows, Array& out, Array& dev) {
  device_->launch(Normalize{ptr(x), ptr(out), ptr(dev), config_.d_model, kind, config_.norm_eps},
                  rows);
}

void CudaBackend::norm_behind(int index, Sublayer sublayer, Array& y, std::int64_t rows,
                              Array& dev) {
  const auto w = on_device_.layer(index);
  const Array& bias =
      w->vector(sublayer == Sublayer::attention ? model::Role::b_o : model::Role::b_out);
  device_->launch(Deviation{ptr(y), maybe(bias), 0, ptr(dev), 1, config_.d_model, config_.norm_eps},
                  rows);
  through_norm_behind(index, sublayer, dev, rows, y);
}

void CudaBackend::through_norm_behind(int index, Sublayer sublayer, const Array& dev,
                                      std::int64_t rows, Array& y) {
  const auto w = on_device_.layer(index);
  const std::int64_t d = config_.d_model;
  const Array& post = w->vector(sublayer == Sublayer::attention ? model::Role::attn_post_w
                                                                : model::Role::mlp_post_w);
  if (post.empty()) return;
  device_->launch(ThroughNorm{ptr(y), d, 0, 1, d, ptr(post), ptr(dev), nullptr}, rows * d);
}

Rotary CudaBackend::rotary(int index, std::int64_t positions, int context) {
  const Rope& rope = config_.layer(index).rope;
  if (rope.dims == 0) return {nullptr, nullptr, 0};
  const int half = rope.dims / 2;
  const bool long_prompt = is_long_prompt(rope, context);
  std::lock_guard lock(mutex_);
  std::int64_t known = 0;
  for (auto table = rotary_tables_.rbegin(); table != rotary_tables_.rend(); ++table) {
    if (table->long_prompt != long_prompt || !(table->rope == rope)) continue;
    if (table->positions >= positions) return {ptr(table->cos), ptr(table->sin), half};
    known = std::max(known, table->positions);
  }
  const std::int64_t count = std::max<std::int64_t>({64, positions, 2 * known});
  const std::vector<double> frequencies = rotary_frequencies(rope, context);
  std::vector<float> cos, sin;
  for (std::int64_t s = 0; s < count; ++s) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(s) * frequency;
      cos.push_back(static_cast<float>(rope.amplitude * std::cos(angle)));
      sin.push_back(static_cast<float>(rope.amplitude * std::sin(angle)));
    }
  }
  const auto put = [&](const std::vector<float>& values) {
    Array array = device_->floats(static_cast<std::int64_t>(values.size()));
    device_->to_device(array.raw(), values.data(), values.size() * sizeof(float));
    return array;
  };
  rotary_tables_.push_back({rope, long_prompt, count, put(cos), put(sin)});
  return {ptr(rotary_tables_.back().cos), ptr(rotary_tables_.back().sin), half};
}

void CudaBackend::qkv(int index, const Array& normalized, std::span<const int> positions,
                      int context, Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) {
  const auto w = on_device_.layer(index);
  const auto rows = static_cast<std::int64_t>(positions.size());
  multiply(w->matrix(model::Role::w_q), ptr(normalized), rows, ptr(q));
  multiply(w->matrix(model::Role::w_k), ptr(normalized), rows, ptr(k));
  multiply(w->matrix(model::Role::w_v), ptr(normalized), rows, ptr(v));
  const int max_position =
      positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
  const Rotary turn = rotary(index, max_position + 1, context);
  const auto at = device_->upload(positions);
  const bool whole = config_.layer(index).qk_norm == QkNorm::projection;
  const std::int64_t e = config_.d_head;
  const auto finish = [&](Array& x, model::Role bias_role, model::Role norm_role, Array& dev,
                          int heads) {
    const Array& bias = w->vector(bias_role);
    const Array& norm = w->vector(norm_role);
    if (bias.empty() && norm.empty() && turn.cos == nullptr) return;
    const bool known = whole && !norm.empty();
    if (known)
      device_->launch(
          Deviation{ptr(x), maybe(bias), 1, ptr(dev), heads, heads * e, config_.norm_eps}, rows);
    device_->launch(FinishHead{ptr(x), known ? nullptr : maybe(bias), maybe(norm),
                               norm.empty() ? nullptr : ptr(dev), known ? 1 : 0, at.get(), turn,
                               heads, e, config_.norm_eps},
                    rows * heads);
  };
  finish(q, model::Role::b_q, model::Role::q_norm, q_dev, config_.n_heads);
  finish(k, model::Role::b_k, model::Role::k_norm, k_dev, config_.n_kv_heads);
  const Array& bias = w->vector(model::Role::b_v);
  if (!bias.empty())
    device_->launch(AddBias{ptr(bias), ptr(v), bias.size(), nullptr, nullptr}, rows * bias.size());
}

void CudaBackend::attention(int index, const Array& q, const Array& k, const Array& v,
                            std::span<const Segment> segments,
                            std::span<const std::int64_t> key_begin, Array& pattern, Array& z) {
  const std::int64_t heads = config_.n_heads, e = config_.d_head, groups = config_.n_kv_heads,
                     group = config_.group_size();
  const std::int64_t q_row = heads * e, kv_row = groups * e;
  const LayerConfig& shape = config_.layer(index);
  const auto w = on_device_.layer(index);
  std::int64_t pattern_begin = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const std::int64_t keys = segment.past + segment.length;
    const std::int64_t at_once = std::clamp<std::int64_t>(
        kLogitBytes / 4 / std::max<std::int64_t>(1, heads * keys), 1, segment.length);
    Array logits = device_->floats(heads * at_once * keys);
    const float* kh = ptr(k) + key_begin[i] * kv_row;
    const float* vh = ptr(v) + key_begin[i] * kv_row;
    for (std::int64_t begin = 0; begin < segment.length; begin += at_once) {
      const std::int64_t n = std::min(at_once, segment.length - begin);
      const std::int64_t reach = segment.past + begin + n;
      const float* qh = ptr(q) + (segment.begin + begin) * q_row;
      float* zh = ptr(z) + (segment.begin + begin) * q_row;
      for (std::int64_t r = 0; r < group; ++r) {
        device_->gemm({1, 0, n, reach, e, qh + r * e, q_row, group * e, kh, kv_row, e,
                       ptr(logits) + r * n * keys, keys, group * n * keys, groups});
      }
      device_->launch(
          CausalSoftmax{ptr(logits), n, keys, segment.past + begin, reach, head_scale(index),
                        pattern.empty() ? nullptr : ptr(pattern) + pattern_begin,
                        tri(segment.length), begin, shape.window,
                        static_cast<float>(shape.attention_cap),
                        maybe(w->vector(model::Role::sinks))},
          heads * n);
      for (std::int64_t r = 0; r < group; ++r) {
        device_->gemm({0, 0, n, e, reach, ptr(logits) + r * n * keys, keys, group * n * keys, vh,
                       kv_row, e, zh + r * e, q_row, group * e, groups});
      }
    }
    pattern_begin += heads * tri(segment.length);
  }
}

void CudaBackend::attention_out(int index, const Array& z, std::int64_t rows, Array& out) {
  multiply(on_device_.layer(index)->matrix(model::Role::w_o), ptr(z), rows, ptr(out));
}

void CudaBackend::router(int index, const Array& normalized, std::int64_t rows, Array& out) {
  const auto w = on_device_.layer(index);
  multiply(w->matrix(model::Role::w_r), ptr(normalized), rows, ptr(out));
  const Array& bias = w->vector(model::Role::b_r);
  if (!bias.empty())
    device_->launch(AddBias{ptr(bias), ptr(out), bias.size(), nullptr, nullptr},
                    rows * bias.size());
}

void CudaBackend::mlp_in(int index, MlpSide side, const Array& normalized, std::int64_t rows,
                         const Routing* routing, Array& out) {
  const std::int64_t n = config_.layer(index).n_neurons;
  if (routing != nullptr) return experts_in(index, side, ptr(normalized), rows, *routing, ptr(out));
  const auto w = on_device_.layer(index);
  multiply(w->matrix(matrix_of(side)), ptr(normalized), rows, ptr(out));
  const Array& bias = w->vector(bias_of(side));
  if (!bias.empty()) device_->launch(AddBias{ptr(bias), ptr(out), n, nullptr, nullptr}, rows * n);
}

void CudaBackend::activate(int index, const Array& pre, const Array& up, const Routing* routing,
                           std::int64_t rows, Array& act) {
  const LayerConfig& shape = config_.layer(index);
  Array weight;
  if (routing != nullptr) weight = device_->upload_floats(routing->weight);
  device_->launch(
      Activate{ptr(pre), maybe(up), ptr(act), shape.activation, maybe(weight), shape.n_neurons},
      rows * shape.entries());
}

void CudaBackend::mlp_out(int index, const Array& act, std::int64_t rows, const Routing* routing,
                          Array& out) {
  if (routing != nullptr) return experts_out(index, ptr(act), rows, *routing, ptr(out));
  multiply(on_device_.layer(index)->matrix(model::Role::w_out), ptr(act), rows, ptr(out));
}

void CudaBackend::logits(const Array& x, std::span<const std::int64_t> rows,
                         std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  const auto n = static_cast<std::int64_t>(rows.size());
  Array picked = device_->floats(n * d), normalized = device_->floats(n * d),
        dev = device_->floats(n);
  for (std::int64_t i = 0; i < n; ++i) copy(x, rows[i] * d, picked, i * d, d);
  normalize(config_.norm, picked, n, normalized, dev);
  device_->launch(ScaleShift{ptr(normalized), ptr(final_w_device_),
                             final_b_device_.empty() ? nullptr : ptr(final_b_device_), d},
                  n * d);
  const DeviceMatrix& table = on_device_.unembed();
  const std::int64_t vocabulary = config_.vocab_size;
  Array made = device_->floats(n * vocabulary);
  constexpr std::int64_t kFewRows = 4;
  if (n <= kFewRows) {
    device_->launch(
        StoredDots{table.data.get(), table.type, ptr(normalized), ptr(made), d, vocabulary},
        n * vocabulary);
  } else {
    multiply_turned(table, ptr(normalized), n, ptr(made));
  }
  out.resize(n * vocabulary);
  download(made, 0, out);
  if (config_.logit_scale != 1.0) {
    for (double& logit : out) logit *= config_.logit_scale;
  }
}

Backend::Peaks CudaBackend::measure_peaks() {
  using Clock = std::chrono::steady_clock;
  const auto fastest = [&](int repeat, const auto& work) {
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
      device_->wait();
      const auto begin = Clock::now();
      work();
      device_->wait();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  };
  const bool emulated = name_ != "cuda";
  const std::int64_t n = emulated ? 256 : 8192;
  const std::int64_t floats = emulated ? std::int64_t{1} << 20 : std::int64_t{1} << 29;
  std::vector<float> noise(static_cast<std::size_t>(n * n));
  std::uint64_t state = 1;
  for (float& x : noise) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    x = static_cast<float>(static_cast<double>(state >> 40) / (1 << 24) - 0.5);
  }
  Peaks peaks;
  {
    Array a = device_->floats(n * n), b = device_->floats(n * n), c = device_->floats(n * n);
    device_->to_device(a.raw(), noise.data(), noise.size() * sizeof(float));
    device_->to_device(b.raw(), noise.data(), noise.size() * sizeof(float));
    // As the scores of neurons are made: with weights that are stored like theirs.
    const model::LayerWeights& layer = weights_->layers[0];
    const model::RoleViews& mlp = layer.experts.empty()
                                      ? static_cast<const model::RoleViews&>(layer)
                                      : static_cast<const model::RoleViews&>(layer.experts[0]);
    DeviceMatrix m;
    m.type = stored_as(mlp[model::Role::w_in]);
    if (m.type == kMxfp4) m.type = kBf16;  // which they become
    m.in = m.out = n;
    m.data = device_->bytes(noise.size() * sizeof(float));
    if (m.type == kF32) {
      device_->copy(m.data.get(), b.raw(), noise.size() * sizeof(float));
    } else {
      // Numbers from 1/2 to 1 and from -1 to -1/2.
      std::vector<std::uint16_t> halves;
      for (const float x : noise) {
        const std::uint32_t bits = base::bits_of_float(x) >> 8;
        halves.push_back(static_cast<std::uint16_t>(m.type == kF16 ? (bits & 0x83FFU) | 0x3800U
                                                                   : (bits & 0x807FU) | 0x3F00U));
      }
      device_->to_device(m.data.get(), halves.data(), halves.size() * sizeof(std::uint16_t));
      device_->wait();
    }
    const double seconds =
        split_.pays(m, n)
            ? fastest(5,
                      [&, w = split_.weights(m)] {
                        split_.multiply({ptr(a), n, nullptr, n, n}, w, ptr(c));
                      })
            : fastest(5, [&] {
                device_->gemm({0, 0, n, n, n, ptr(a), n, 0, ptr(b), n, 0, ptr(c), n, 0, 1});
              });
    peaks.flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
  }
  // Bytes read and bytes written.
  Array from = zeros(floats), to = device_->floats(floats);
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  peaks.bytes = 2.0 * static_cast<double>(bytes) /
                fastest(5, [&] { device_->copy(to.raw(), from.raw(), bytes); });
  return peaks;
}

}  // namespace unpack::backend::cuda
