// A model's weights on the device, as they are stored: single precision with the norm's weight
// folded in, halves and blocks of four bits as they are, widened where a product needs them. Models
// that do not fit keep a few layers there, and the next one goes up while this one works. Experts
// go up when a prompt first uses them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/device.h"
#include "base/index.h"
#include "model/weights.h"

namespace unpack::backend::cuda {

// A matrix [in, out], stored like that or, turned, as [out, in].
struct DeviceMatrix {
  std::shared_ptr<void> data;
  int type = kF32;
  bool turned = false;
  Index in = 0, out = 0;
  float factor = 1;  // of all, and
  Array scale;       // [in] of the norm in front, where they are not folded in
};

// The same ready for a product.
struct Operand {
  std::shared_ptr<void> keep;
  const float* data = nullptr;
  bool turned = false;
  Index in = 0, out = 0;

  Index ld() const { return turned ? in : out; }
  // Where column (row) i starts.
  const float* column(Index i) const { return data + (turned ? i * in : i); }
  const float* row(Index i) const { return data + (turned ? i : i * out); }
};

// The weights of a layer or of one expert by role; empty where it has none. Biases have those of
// the norm in front folded in; q_norm is [H, E] and k_norm [G, E].
class DeviceRoles {
 public:
  DeviceMatrix& matrix(model::Role role) { return matrices_[static_cast<std::size_t>(role)]; }
  const DeviceMatrix& matrix(model::Role role) const {
    return matrices_[static_cast<std::size_t>(role)];
  }
  Array& vector(model::Role role) { return vectors_[static_cast<std::size_t>(role)]; }
  const Array& vector(model::Role role) const { return vectors_[static_cast<std::size_t>(role)]; }

 private:
  std::array<DeviceMatrix, model::kRoles> matrices_;
  std::array<Array, model::kRoles> vectors_;
};

class DeviceWeights {
 public:
  DeviceWeights(std::shared_ptr<Device> device, std::shared_ptr<const model::ModelWeights> weights);
  ~DeviceWeights();
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  std::shared_ptr<const DeviceRoles> layer(int index);
  // Of a layer what folds keys back: w_k and k_norm. They stay on the device where layers do not,
  // as far as they take a small part of it, so that a walk that needs nothing else takes nothing
  // up.
  std::shared_ptr<const DeviceRoles> keys(int index);
  std::shared_ptr<const DeviceRoles> expert(int layer, int index);
  const DeviceMatrix& unembed();  // [V, D], kept
  bool streams() const { return keep_ < count_; }
  // As DeviceMemory has them.
  void keep_layers(std::size_t count);
  std::uint64_t uploaded_bytes() const { return uploaded_; }
  std::uint64_t upload_once();
  // Bytes of the layers that will stay on the device and are not there yet, and of the table of
  // output embeddings.
  std::uint64_t still_to_come();
  // The matrix in single precision; halves are widened into memory of their own.
  // `on` has its own order of work, as lanes have (CudaBackend::lanes).
  static Operand operand(const DeviceMatrix& m, Device& on);

 private:
  using Pointer = std::shared_ptr<const DeviceRoles>;
  struct Expert {
    int layer, index;
    Pointer roles;
    std::size_t bytes;
  };
  // What is stored, on the device, before anything is folded; `norms` has those in front. `finite`
  // becomes false where some number is not; null: nobody asks.
  std::shared_ptr<DeviceRoles> upload(const model::RoleViews& views, const model::RoleViews& norms,
                                      bool* finite);
  std::shared_ptr<DeviceRoles> upload(int index);
  Pointer finish(std::shared_ptr<DeviceRoles> raw);
  void drop_upload();

  std::shared_ptr<Device> device_;
  std::shared_ptr<const model::ModelWeights> weights_;
  std::size_t count_ = 0;
  std::size_t keep_ = 0;
  std::mutex mutex_;
  std::vector<Pointer> layers_;
  std::vector<Pointer> keys_;  // where layers go
  bool keep_keys_ = false;
  std::list<int> recent_;
  int coming_ = -1;  // the layer that goes up now
  std::future<std::shared_ptr<DeviceRoles>> upload_;
  int last_ = -1;
  std::atomic<std::uint64_t> uploaded_ = 0;
  std::list<Expert> experts_;  // latest first
  std::size_t expert_bytes_ = 0, expert_room_ = 0;
  DeviceMatrix unembed_;
};

}  // namespace unpack::backend::cuda
