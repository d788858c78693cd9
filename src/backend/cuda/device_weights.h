// A model's weights on the device, as they are stored: single precision with the norm's weight
// folded in, halves as they are, widened where a product needs them. Models that do not fit keep a
// few layers there, and the next one goes up while this one works.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/device.h"
#include "model/weights.h"

namespace unpack::cuda {

// A matrix [in, out], stored like that or, turned, as [out, in].
struct DeviceMatrix {
  std::shared_ptr<void> data;
  int type = kF32;
  bool turned = false;
  std::int64_t in = 0, out = 0;
  Array scale;  // [in] of the norm in front, where it is not folded in
};

// The same ready for a product.
struct Operand {
  std::shared_ptr<void> keep;
  const float* data = nullptr;
  bool turned = false;
  std::int64_t in = 0, out = 0;

  std::int64_t ld() const { return turned ? in : out; }
  // Where column (row) i starts.
  const float* column(std::int64_t i) const { return data + (turned ? i * in : i); }
  const float* row(std::int64_t i) const { return data + (turned ? i : i * out); }
};

struct DeviceLayer {
  DeviceMatrix q, k, v, o, in, up, out;
  Array b_q, b_k, b_v, b_o, b_in, b_up, b_out;  // norm biases folded in; empty: none
  Array q_norm, k_norm;
};

class DeviceWeights {
 public:
  DeviceWeights(std::shared_ptr<Device> device, std::shared_ptr<const ModelWeights> weights);
  ~DeviceWeights();
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  std::shared_ptr<const DeviceLayer> layer(int index);
  const DeviceMatrix& unembed();  // [V, D], kept
  bool streams() const { return keep_ < count_; }
  // As DeviceMemory has them.
  void keep_layers(std::size_t count);
  std::uint64_t uploaded_bytes() const { return uploaded_; }
  std::uint64_t upload_once();
  // The matrix in single precision; halves are widened into memory of their own.
  Operand operand(const DeviceMatrix& m);

 private:
  using LayerPointer = std::shared_ptr<const DeviceLayer>;
  struct Raw;  // a layer's bytes on the device, before anything is folded
  std::shared_ptr<Raw> upload(int index);
  LayerPointer finish(Raw& raw);
  void drop_upload();

  std::shared_ptr<Device> device_;
  std::shared_ptr<const ModelWeights> weights_;
  std::size_t count_ = 0;
  std::size_t keep_ = 0;
  std::mutex mutex_;
  std::vector<LayerPointer> layers_;
  std::list<int> recent_;
  int coming_ = -1;  // the layer that goes up now
  std::future<std::shared_ptr<Raw>> upload_;
  int last_ = -1;
  std::atomic<std::uint64_t> uploaded_ = 0;
  DeviceMatrix unembed_;
};

}  // namespace unpack::cuda
