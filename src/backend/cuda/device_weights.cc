#include "backend/cuda/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "backend/cuda/weight_copy.h"
#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend::cuda {

namespace {

// `size`: how many numbers, where fewer are stored and stand for all heads.
Array put_vector(Device& device, const model::WeightView& w, Index size, bool* finite) {
  if (!w) return {};
  std::vector<float> values(std::max(size, w.out));
  model::read_rows(w, 0, 1, values.data());
  const bool good =
      std::all_of(values.begin(), values.begin() + w.out, [](float x) { return std::isfinite(x); });
  if (finite != nullptr && !good) *finite = false;
  for (std::size_t i = w.out; i < values.size(); ++i) values[i] = values[i - w.out];
  const std::size_t bytes = values.size() * sizeof(float);
  auto memory = device.bytes_beside(bytes);
  device.to_device_beside(memory.get(), values.data(), bytes);
  return Array(memory, values.size());
}

std::size_t bytes_of(const model::RoleViews& w) {
  std::size_t bytes = 0;
  for (const model::Role role : model::kMatrices) bytes += matrix_bytes(w[role]);
  return bytes;
}

}  // namespace

DeviceWeights::DeviceWeights(std::shared_ptr<Device> device,
                             std::shared_ptr<const model::ModelWeights> weights)
    : device_(std::move(device)), weights_(std::move(weights)), count_(weights_->layers.size()) {
  std::size_t all = 0, largest = 1;
  bool mixture = false;
  for (const model::LayerWeights& w : weights_->layers) {
    all += bytes_of(w);
    largest = std::max(largest, bytes_of(w));
    mixture = mixture || !w.experts.empty();
  }
  // A third of the memory is left to the prompt and to tiles.
  std::size_t room = device_->info().memory_free * 0.65;
  const std::size_t fixed = matrix_bytes((*weights_)[model::Role::unembed]);
  room = room > fixed ? room - fixed : 0;
  keep_ = count_;
  // The layer in use, the one before it, whose work may still be queued, and the next. Experts take
  // half of what there is where the layers alone are too many already.
  if (all > room) {
    if (mixture) room /= 2;
    keep_ = std::min(count_, std::max<std::size_t>(2, room / largest / 2));
    expert_room_ = room;
  } else {
    expert_room_ = room - all;
  }
  layers_.resize(count_);
  keys_.resize(count_);
  std::size_t keys = 0;
  for (const model::LayerWeights& w : weights_->layers) keys += matrix_bytes(w[model::Role::w_k]);
  keep_keys_ = keys <= room / 8;
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
  keys_.assign(count_, nullptr);
  recent_.clear();
  // As many experts as belong to so many layers.
  std::size_t largest = 0;
  for (const model::LayerWeights& w : weights_->layers) {
    std::size_t bytes = 0;
    for (const model::RoleViews& expert : w.experts) bytes += bytes_of(expert);
    largest = std::max(largest, bytes);
  }
  expert_room_ = largest * keep_;
  experts_.clear();
  expert_bytes_ = 0;
  last_ = -1;
}

std::uint64_t DeviceWeights::upload_once() {
  std::lock_guard lock(mutex_);
  drop_upload();
  const std::uint64_t before = uploaded_;
  for (int i = 0; i < static_cast<int>(count_); ++i) (void)upload(i);
  return uploaded_ - before;
}

std::uint64_t DeviceWeights::still_to_come() {
  std::lock_guard lock(mutex_);
  std::uint64_t bytes = unembed_.data ? 0 : matrix_bytes((*weights_)[model::Role::unembed]);
  std::size_t largest = 0, there = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t own = bytes_of(weights_->layers[i]);
    largest = std::max(largest, own);
    there += layers_[i] ? 1 : 0;
    if (!streams() && !layers_[i]) bytes += own;
  }
  // Those that stay, and the one on its way.
  if (streams() && there < keep_ + 1) bytes += (keep_ + 1 - there) * largest;
  return bytes;
}

std::shared_ptr<DeviceRoles> DeviceWeights::upload(const model::RoleViews& views,
                                                   const model::RoleViews& norms, bool* finite) {
  auto raw = std::make_shared<DeviceRoles>();
  // Whatever happens, nothing is on its way any more when the memory may be given back.
  struct Arrival {
    Device& device;
    bool waited = false;
    ~Arrival() {
      if (waited) return;
      try {
        device.wait_beside();
      } catch (const Error&) {  // the first failure is the one to tell
      }
    }
  } arrival{*device_};
  const ModelConfig& c = weights_->config;
  for (std::size_t i = 0; i < model::kRoles; ++i) {
    const model::Role role = static_cast<model::Role>(i);
    const model::RoleFacts facts = model::facts_of(role);
    if (facts.kind == model::RoleKind::norm_weight || facts.kind == model::RoleKind::norm_bias)
      raw->vector(role) = put_vector(*device_, norms[role], 0, nullptr);
    if (!model::kept_as_vector(role)) continue;
    const Index heads = facts.heads == model::RoleFacts::Heads::queries ? c.n_heads
                        : facts.heads == model::RoleFacts::Heads::keys  ? c.n_kv_heads
                                                                        : 0;
    raw->vector(role) = put_vector(*device_, views[role], heads * c.d_head, finite);
  }
  for (const model::Role role : model::kMatrices)
    raw->matrix(role) = put_matrix(*device_, views[role], finite);
  device_->wait_beside();
  arrival.waited = true;
  uploaded_ += bytes_of(views);
  return raw;
}

std::shared_ptr<DeviceRoles> DeviceWeights::upload(int index) {
  const model::LayerWeights& w = weights_->layers[index];
  return upload(w, w, nullptr);
}

DeviceWeights::Pointer DeviceWeights::expert(int layer, int index) {
  std::lock_guard lock(mutex_);
  for (auto it = experts_.begin(); it != experts_.end(); ++it) {
    if (it->layer != layer || it->index != index) continue;
    experts_.splice(experts_.begin(), experts_, it);
    return experts_.front().roles;
  }
  const model::LayerWeights& w = weights_->layers[layer];
  const model::RoleViews& views = w.experts[index];
  // Loading looks at no expert, so that the unused ones are never read.
  bool finite = true;
  const std::shared_ptr<DeviceRoles> raw = upload(views, w, &finite);
  device_->join();
  if (!finite)
    throw InputError(fmt::format(
        "expert {} of layer {} holds values that are no finite numbers; the file is damaged or "
        "its training diverged, use another checkpoint",
        index, layer));
  experts_.push_front({layer, index, finish(raw), bytes_of(views)});
  expert_bytes_ += experts_.front().bytes;
  while (expert_bytes_ > expert_room_ && experts_.size() > 1) {
    expert_bytes_ -= experts_.back().bytes;
    experts_.pop_back();
  }
  return experts_.front().roles;
}

Operand DeviceWeights::operand(const DeviceMatrix& m, Device& on) {
  Operand out{m.data, static_cast<const float*>(m.data.get()), m.turned, m.in, m.out};
  if (m.type == kF32 && m.factor == 1 && m.scale.empty()) return out;
  Array wide = on.floats(m.in * m.out);
  on.launch(Widen{m.data.get(), m.type, m.factor, m.scale.empty() ? nullptr : ptr(m.scale),
                  m.turned ? 1 : 0, m.turned ? m.in : m.out, ptr(wide)},
            m.in * m.out);
  out.keep = std::make_shared<Array>(wide);
  out.data = ptr(wide);
  return out;
}

// Folds the norm in front into matrix and bias: x_hat (w W) + (b + beta W).
DeviceWeights::Pointer DeviceWeights::finish(std::shared_ptr<DeviceRoles> raw) {
  for (const model::Role role : model::kMatrices) {
    const model::RoleFacts reader = model::facts_of(role);
    DeviceMatrix& m = raw->matrix(role);
    if (!m.data) continue;
    const bool reads_norm = reader.norm_w != model::Role::count;
    if (reads_norm && !raw->vector(reader.norm_b).empty()) {
      Array& bias = raw->vector(reader.bias);
      if (bias.empty()) bias = device_->zeros(m.out);
      const Operand x = operand(m, *device_);
      device_->gemm({x.turned ? 1 : 0, 1, 1, m.out, m.in, ptr(raw->vector(reader.norm_b)), m.in, 0,
                     x.data, x.ld(), 0, ptr(bias), m.out, 0, 1});
    }
    if (reads_norm) m.scale = raw->vector(reader.norm_w);
    if (m.type != kF32 || (m.factor == 1 && m.scale.empty())) continue;
    device_->launch(
        Widen{m.data.get(), m.type, m.factor, m.scale.empty() ? nullptr : ptr(m.scale),
              m.turned ? 1 : 0, m.turned ? m.in : m.out, static_cast<float*>(m.data.get())},
        m.in * m.out);
    m.factor = 1;
    m.scale = {};
  }
  return raw;
}

DeviceWeights::Pointer DeviceWeights::layer(int index) {
  const std::size_t i = index;
  std::lock_guard lock(mutex_);
  if (!layers_[i]) {
    std::shared_ptr<DeviceRoles> raw;
    if (coming_ == index) {
      coming_ = -1;
      raw = upload_.get();
    } else {
      drop_upload();  // the walk went elsewhere
      raw = upload(index);
    }
    device_->join();
    layers_[i] = finish(raw);
    if (streams() && keep_keys_ && !keys_[i]) {
      const auto kept = std::make_shared<DeviceRoles>();
      kept->matrix(model::Role::w_k) = layers_[i]->matrix(model::Role::w_k);
      kept->vector(model::Role::k_norm) = layers_[i]->vector(model::Role::k_norm);
      keys_[i] = kept;
    }
  }
  if (!streams()) return layers_[i];
  recent_.remove(index);
  recent_.push_front(index);
  while (recent_.size() > keep_) {
    layers_[recent_.back()].reset();
    recent_.pop_back();
  }
  // Layers are walked up or down, one after the other: the next one goes up beside this one's work.
  if (last_ != index) {
    const int step = last_ >= 0 && index == last_ - 1 ? -1 : 1;
    const int count = count_;
    const int next = (index + step + count) % count;
    last_ = index;
    if (coming_ < 0 && !layers_[next]) {
      coming_ = next;
      upload_ = std::async(std::launch::async, [this, next] { return upload(next); });
    }
  }
  return layers_[i];
}

DeviceWeights::Pointer DeviceWeights::keys(int index) {
  {
    std::lock_guard lock(mutex_);
    if (const Pointer& kept = keys_[index]) return kept;
  }
  return layer(index);
}

const DeviceMatrix& DeviceWeights::unembed() {
  std::lock_guard lock(mutex_);
  if (!unembed_.data) {
    DeviceMatrix table = put_matrix(*device_, (*weights_)[model::Role::unembed], nullptr);
    device_->wait_beside();
    unembed_ = table;
    if (unembed_.factor != 1 || unembed_.type == kMxfp4)
      throw InternalError("[cuda] the table of output embeddings must be stored as it is read");
    device_->join();
  }
  return unembed_;
}

}  // namespace unpack::backend::cuda
