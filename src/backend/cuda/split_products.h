// Products of single precision as sums of tensor-core products. Weights stored as halves or in four
// bits are exact factors there, once the norm's weight is on the other side; rows are the sum of
// two factors, single-precision weights too.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/device.h"
#include "backend/cuda/device_weights.h"

namespace unpack::cuda {

class SplitProducts {
 public:
  // `allowed`: false where everything is to be single precision, or TF32 already.
  SplitProducts(std::shared_ptr<Device> device, bool allowed);

  // Whether so many rows times these weights are faster in parts, and how many times.
  bool pays(const DeviceMatrix& w, std::int64_t rows) const;
  double gain(const DeviceMatrix& w) const;
  const char* words(const DeviceMatrix& w) const;  // "two bf16 products"

  struct Weights {
    std::shared_ptr<void> keep_high, keep_low;
    const void* high = nullptr;
    const void* low = nullptr;  // null: the first part is all
    bool bf16 = false;
    bool turned = false;
    std::int64_t in = 0, out = 0;
    const float* scale = nullptr;  // [in] for the rows
    float factor = 1;
  };
  Weights weights(const DeviceMatrix& w);

  // Runs of `run` numbers, rows of w.in each, `stride` apart; `rows` names them where they are not
  // the first ones.
  struct Runs {
    const float* from;
    std::int64_t stride;
    const int* rows;
    std::int64_t run, count;
  };
  // c[all rows, out] = rows W, rows of c `ldc` apart; 0: without gaps.
  void multiply(const Runs& runs, const Weights& w, float* c, std::int64_t ldc = 0);
  // c[.., h, :] = rows[.., h, :] W[h] for weights [heads E, out] of single precision; a row of c is
  // all heads'.
  void multiply_heads(const float* rows, std::int64_t count, std::int64_t heads, const Weights& w,
                      float* c, std::int64_t ldc);

 private:
  struct Parts {
    std::shared_ptr<void> high, low;
  };
  Parts parts(const Runs& runs, const Weights& w);
  void add_up(const Parts& rows, const Weights& w, UnpackGemm call);

  std::shared_ptr<Device> device_;
  std::int64_t from_ = 0;  // multiplications
};

}  // namespace unpack::cuda
