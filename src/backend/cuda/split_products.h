// Products of single precision as sums of tensor-core products. Weights of two bytes or four bits
// are exact factors there, once the norm's weight is on the other side. Rows that meet float16 are
// the sum of two halves in a unit of theirs, which has 22 bits, and so are single-precision weights
// and their rows; those that meet bfloat16 are the sum of two such numbers, which has 16.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "backend/cuda/device.h"
#include "backend/cuda/device_weights.h"
#include "base/index.h"

namespace unpack::backend::cuda {

class SplitProducts {
 public:
  enum class Mode { parts, single, tf32 };  // the last two: nothing is made in parts
  SplitProducts(std::shared_ptr<Device> device, Mode mode);

  bool allowed() const { return mode_ == Mode::parts; }
  Mode mode() const { return mode_; }
  // Whether so many rows times these weights would be made in parts where that is allowed. Signed
  // sums are then read off the sum of the writers, in single precision as well, so that both ways
  // have the same ones: near 0 the next rounding decides their sign.
  bool large(const DeviceMatrix& w, Index rows) const;
  // Whether so many rows times these weights are faster in parts, and how many times.
  bool pays(const DeviceMatrix& w, Index rows) const;
  double gain(const DeviceMatrix& w) const;
  const char* words(const DeviceMatrix& w) const;  // "two products of halves"

  enum class Kind { tf32, bf16, halves };
  struct Weights {
    std::shared_ptr<void> keep_high, keep_low;
    const void* high = nullptr;
    const void* low = nullptr;  // null: the first part is all
    Kind kind = Kind::tf32;
    bool turned = false;
    Index in = 0, out = 0;
    const float* scale = nullptr;  // [in] for the rows
    float factor = 1;
    Array unit;  // of halves that were taken apart; empty: they are as they are stored
  };
  Weights weights(const DeviceMatrix& w);

  // A power of two that brings so many numbers into the range of halves, on the device. Behind it
  // stands what their product with numbers in the unit `other` (empty: 1) is multiplied by.
  Array unit_of_rows(const float* rows, Index count, const Array& other = {});

  // Runs of `run` numbers, rows of w.in each, `stride` apart; `rows` names them where they are not
  // the first ones. `whole`: all 24 bits of them, in three factors where two have 16. With `per`
  // the same so many runs at every `outer` numbers.
  struct Runs {
    const float* from;
    Index stride;
    const int* rows;
    Index run, count;
    bool whole = false;
    Index per = 0, outer = 0;
  };
  // c[all rows, out] = rows W, rows of c `ldc` apart; 0: without gaps.
  void multiply(const Runs& runs, const Weights& w, float* c, Index ldc = 0);
  // c[from.in, out] = from W, of weights [from.in, w.in] as they are stored.
  void multiply_stored(const DeviceMatrix& from, const Weights& w, float* c);
  // Three products as one of three times the depth: what it adds up is written once.
  enum class Stacked { rows, others };
  // [.., taken, 3 E] of from[.., own, E], those of the heads from `first` on; `count` of them in
  // all. With `groups` [groups, .., taken / groups, 3 E].
  struct Heads {
    const float* from;
    Index e, own, first, taken, count;
    Index groups = 1;
  };
  Array stack(const Heads& heads, Stacked as);

  // Weights [heads E, out] of single precision, head by head.
  struct HeadWeights {
    std::shared_ptr<void> stacked;  // [heads, 3 E, out]
    Index heads = 0, e = 0, out = 0;
    Kind kind = Kind::tf32;
    Array unit;  // of halves
  };
  HeadWeights head_weights(const Array& w, Index heads, Index e, Index out, Kind kind);
  // c[.., h, :] = rows[.., h, :] W[h]; a row of c is all heads'.
  void multiply_heads(const float* rows, Index count, const HeadWeights& w, float* c, Index ldc);

 private:
  struct Parts {
    std::shared_ptr<void> high, low, rest;
    Array unit;  // of halves
    Halves to(Kind kind) const;
  };
  Parts parts(const Runs& runs, const Weights& w);
  Parts room_for(Index size, bool whole, Kind kind);
  // The unit of what a kernel Largest says of `count` numbers.
  template <typename Largest>
  Array unit_of_all(Largest largest, Index count, const Array& other);
  Array unit_of_weights(const DeviceMatrix& w, const ScaledWeights& stored, int quads);
  void add_up(const Parts& rows, const Weights& w, UnpackGemm call);
  std::shared_ptr<void> stacked(const Heads& heads, Index inner, Stacked as, Kind kind,
                                const Array& unit);

  std::shared_ptr<Device> device_;
  Mode mode_;
  Index from_ = 0;  // multiplications
  std::mutex units_mutex_;
  std::unordered_map<const void*, std::pair<std::weak_ptr<void>, Array>> units_;
};

}  // namespace unpack::backend::cuda
