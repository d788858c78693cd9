#include "backend/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unpack::cuda {

namespace {

int stored_as(DType dtype) {
  return dtype == DType::f16 ? kF16 : dtype == DType::bf16 ? kBf16 : kF32;
}

std::size_t matrix_bytes(const WeightView& w) {
  return w ? static_cast<std::size_t>(w.in * w.out) *
                 (w.dtype == DType::f64 ? sizeof(float) : dtype_size(w.dtype))
           : 0;
}

// The view's elements without gaps, [in, out] or turned [out, in], whichever runs along the stored
// order; in single precision where the device has no such type. `gathered` is where they are put if
// they do not lie like that already.
const std::byte* contiguous(const WeightView& w, bool& turned, std::vector<std::byte>& gathered) {
  turned = w.in_stride == 1 && w.out_stride != 1;
  const std::size_t element = dtype_size(w.dtype);
  const auto whole_blocks = w.block >= w.out || w.block_stride == w.block * w.out_stride;
  if (w.dtype != DType::f64 && whole_blocks) {
    if (turned && w.out_stride == w.in) return w.data;
    if (!turned && w.out_stride == 1 && (w.in_stride == w.out || w.in == 1)) return w.data;
  }
  gathered.resize(matrix_bytes(w));
  if (w.dtype != DType::f64 && turned) {
    for (std::int64_t o = 0; o < w.out; ++o) {
      std::memcpy(gathered.data() + static_cast<std::size_t>(o * w.in) * element,
                  w.data + static_cast<std::size_t>(w.offset(0, o)) * element,
                  static_cast<std::size_t>(w.in) * element);
    }
  } else if (w.dtype != DType::f64 && w.out_stride == 1) {
    const std::int64_t run = std::max<std::int64_t>(1, std::min(w.block, w.out));
    for (std::int64_t i = 0; i < w.in; ++i) {
      for (std::int64_t o = 0; o < w.out; o += run) {
        std::memcpy(gathered.data() + static_cast<std::size_t>(i * w.out + o) * element,
                    w.data + static_cast<std::size_t>(w.offset(i, o)) * element,
                    static_cast<std::size_t>(std::min(run, w.out - o)) * element);
      }
    }
  } else if (w.dtype == DType::f64) {
    turned = false;
    read_rows(w, 0, w.in, reinterpret_cast<float*>(gathered.data()));
  } else {
    turned = false;
    for (std::int64_t i = 0; i < w.in; ++i) {
      for (std::int64_t o = 0; o < w.out; ++o) {
        std::memcpy(gathered.data() + static_cast<std::size_t>(i * w.out + o) * element,
                    w.data + static_cast<std::size_t>(w.offset(i, o)) * element, element);
      }
    }
  }
  return gathered.data();
}

DeviceMatrix put_matrix(Device& device, const WeightView& w) {
  DeviceMatrix m;
  if (!w) return m;
  m.type = stored_as(w.dtype);
  m.in = w.in;
  m.out = w.out;
  std::vector<std::byte> gathered;
  const std::byte* from = contiguous(w, m.turned, gathered);
  m.data = device.bytes_beside(matrix_bytes(w));
  device.to_device_beside(m.data.get(), from, matrix_bytes(w));
  return m;
}

Array put_vector(Device& device, const WeightView& w) {
  if (!w) return {};
  std::vector<float> values(static_cast<std::size_t>(w.out));
  read_rows(w, 0, 1, values.data());
  const std::size_t bytes = values.size() * sizeof(float);
  auto memory = device.bytes_beside(bytes);
  device.to_device_beside(memory.get(), values.data(), bytes);
  return Array(memory, w.out);
}

std::size_t layer_bytes(const LayerWeights& w) {
  std::size_t bytes = 0;
  for (const Role role :
       {Role::w_q, Role::w_k, Role::w_v, Role::w_o, Role::w_in, Role::w_up, Role::w_out})
    bytes += matrix_bytes(w[role]);
  return bytes;
}

}  // namespace

struct DeviceWeights::Raw {
  DeviceMatrix q, k, v, o, in, up, out;
  Array b_q, b_k, b_v, b_o, b_in, b_up, b_out, q_norm, k_norm;
  Array attn_w, attn_b, mlp_w, mlp_b;
};

DeviceWeights::DeviceWeights(std::shared_ptr<Device> device,
                             std::shared_ptr<const ModelWeights> weights)
    : device_(std::move(device)), weights_(std::move(weights)), count_(weights_->layers.size()) {
  std::size_t all = 0, largest = 1;
  for (const LayerWeights& w : weights_->layers) {
    all += layer_bytes(w);
    largest = std::max(largest, layer_bytes(w));
  }
  // A third of the memory is left to the prompt and to tiles.
  const auto room =
      static_cast<std::size_t>(static_cast<double>(device_->info().memory_free) * 0.65);
  const std::size_t fixed = matrix_bytes((*weights_)[Role::unembed]);
  keep_ = count_;
  // The layer in use, the one before it, whose work may still be queued, and the next.
  if (all + fixed > room)
    keep_ =
        std::min(count_, std::max<std::size_t>(2, room > fixed ? (room - fixed) / largest / 2 : 2));
  layers_.resize(count_);
}

DeviceWeights::~DeviceWeights() {
  if (upload_.valid()) upload_.wait();
}

// What goes up is not wanted any more.
void DeviceWeights::drop_upload() {
  if (std::exchange(coming_, -1) >= 0) upload_.wait();
  upload_ = {};
}

void DeviceWeights::keep_layers(std::size_t count) {
  std::lock_guard lock(mutex_);
  drop_upload();
  keep_ = std::min(count_, std::max<std::size_t>(2, count));
  layers_.assign(count_, nullptr);
  recent_.clear();
  last_ = -1;
}

std::uint64_t DeviceWeights::upload_once() {
  std::lock_guard lock(mutex_);
  drop_upload();
  const std::uint64_t before = uploaded_;
  for (int i = 0; i < static_cast<int>(count_); ++i) (void)upload(i);
  return uploaded_ - before;
}

std::shared_ptr<DeviceWeights::Raw> DeviceWeights::upload(int index) {
  const LayerWeights& w = weights_->layers[static_cast<std::size_t>(index)];
  auto raw = std::make_shared<Raw>();
  Device& d = *device_;
  raw->attn_w = put_vector(d, w[Role::attn_norm_w]);
  raw->attn_b = put_vector(d, w[Role::attn_norm_b]);
  raw->mlp_w = put_vector(d, w[Role::mlp_norm_w]);
  raw->mlp_b = put_vector(d, w[Role::mlp_norm_b]);
  raw->q = put_matrix(d, w[Role::w_q]);
  raw->k = put_matrix(d, w[Role::w_k]);
  raw->v = put_matrix(d, w[Role::w_v]);
  raw->o = put_matrix(d, w[Role::w_o]);
  raw->in = put_matrix(d, w[Role::w_in]);
  raw->up = put_matrix(d, w[Role::w_up]);
  raw->out = put_matrix(d, w[Role::w_out]);
  raw->b_q = put_vector(d, w[Role::b_q]);
  raw->b_k = put_vector(d, w[Role::b_k]);
  raw->b_v = put_vector(d, w[Role::b_v]);
  raw->b_o = put_vector(d, w[Role::b_o]);
  raw->b_in = put_vector(d, w[Role::b_in]);
  raw->b_up = put_vector(d, w[Role::b_up]);
  raw->b_out = put_vector(d, w[Role::b_out]);
  raw->q_norm = put_vector(d, w[Role::q_norm]);
  raw->k_norm = put_vector(d, w[Role::k_norm]);
  uploaded_ += layer_bytes(w);
  return raw;
}

Operand DeviceWeights::operand(const DeviceMatrix& m) {
  Operand out{m.data, static_cast<const float*>(m.data.get()), m.turned, m.in, m.out};
  if (m.type == kF32 && m.scale.empty()) return out;
  Array wide = device_->floats(m.in * m.out);
  device_->launch(Widen{m.data.get(), m.type, m.scale.empty() ? nullptr : ptr(m.scale),
                        m.turned ? 1 : 0, m.turned ? m.in : m.out, ptr(wide)},
                  m.in * m.out);
  out.keep = std::make_shared<Array>(wide);
  out.data = ptr(wide);
  return out;
}

// Folds the norm in front into matrix and bias: x_hat (w W) + (b + beta W).
DeviceWeights::LayerPointer DeviceWeights::finish(Raw& raw) {
  auto layer = std::make_shared<DeviceLayer>();
  const auto fold = [&](DeviceMatrix& m, const Array& w, const Array& beta, Array& bias,
                        DeviceMatrix& to, Array& bias_to) {
    if (!m.data) return;
    if (!beta.empty()) {
      if (bias.empty()) bias = device_->zeros(m.out);
      const Operand x = operand(m);
      device_->gemm({x.turned ? 1 : 0, 1, 1, m.out, m.in, ptr(beta), m.in, 0, x.data, x.ld(), 0,
                     ptr(bias), m.out, 0, 1});
    }
    if (!w.empty()) {
      if (m.type == kF32) {
        device_->launch(Widen{m.data.get(), m.type, ptr(w), m.turned ? 1 : 0,
                              m.turned ? m.in : m.out, static_cast<float*>(m.data.get())},
                        m.in * m.out);
      } else {
        m.scale = w;
      }
    }
    to = std::move(m);
    bias_to = std::move(bias);
  };
  const Array none;
  fold(raw.q, raw.attn_w, raw.attn_b, raw.b_q, layer->q, layer->b_q);
  fold(raw.k, raw.attn_w, raw.attn_b, raw.b_k, layer->k, layer->b_k);
  fold(raw.v, raw.attn_w, raw.attn_b, raw.b_v, layer->v, layer->b_v);
  fold(raw.o, none, none, raw.b_o, layer->o, layer->b_o);
  fold(raw.in, raw.mlp_w, raw.mlp_b, raw.b_in, layer->in, layer->b_in);
  fold(raw.up, raw.mlp_w, raw.mlp_b, raw.b_up, layer->up, layer->b_up);
  fold(raw.out, none, none, raw.b_out, layer->out, layer->b_out);
  layer->q_norm = raw.q_norm;
  layer->k_norm = raw.k_norm;
  return layer;
}

DeviceWeights::LayerPointer DeviceWeights::layer(int index) {
  const auto i = static_cast<std::size_t>(index);
  std::lock_guard lock(mutex_);
  if (!layers_[i]) {
    std::shared_ptr<Raw> raw;
    if (coming_ == index) {
      coming_ = -1;
      raw = upload_.get();
    } else {
      drop_upload();  // the walk went elsewhere
      raw = upload(index);
    }
    device_->join();
    layers_[i] = finish(*raw);
  }
  if (!streams()) return layers_[i];
  recent_.remove(index);
  recent_.push_front(index);
  while (recent_.size() > keep_) {
    layers_[static_cast<std::size_t>(recent_.back())].reset();
    recent_.pop_back();
  }
  // Layers are walked up or down, one after the other: the next one goes up beside this one's work.
  if (last_ != index) {
    const int step = last_ >= 0 && index == last_ - 1 ? -1 : 1;
    const int count = static_cast<int>(count_);
    const int next = (index + step + count) % count;
    last_ = index;
    if (coming_ < 0 && !layers_[static_cast<std::size_t>(next)]) {
      coming_ = next;
      upload_ = std::async(std::launch::async, [this, next] { return upload(next); });
    }
  }
  return layers_[i];
}

const DeviceMatrix& DeviceWeights::unembed() {
  std::lock_guard lock(mutex_);
  if (!unembed_.data) {
    unembed_ = put_matrix(*device_, (*weights_)[Role::unembed]);
    device_->join();
  }
  return unembed_;
}

}  // namespace unpack::cuda
