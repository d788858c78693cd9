#include "backend/cuda/split_products.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

SplitProducts::Kind kind_of(const DeviceMatrix& w) {
  return w.type == kF32 || w.type == kF16 ? SplitProducts::Kind::halves : SplitProducts::Kind::bf16;
}

std::size_t factor_bytes(SplitProducts::Kind kind) {
  return kind == SplitProducts::Kind::tf32 ? sizeof(float) : sizeof(std::uint16_t);
}

UnpackFactors factors_of(SplitProducts::Kind kind) {
  return kind == SplitProducts::Kind::tf32   ? UNPACK_FACTORS_TF32
         : kind == SplitProducts::Kind::bf16 ? UNPACK_FACTORS_BF16
                                             : UNPACK_FACTORS_HALVES;
}

}  // namespace

SplitProducts::SplitProducts(std::shared_ptr<Device> device, Mode mode)
    : device_(std::move(device)), mode_(mode), from_(device_->info().tensor_work) {}

// Single-precision weights are read, written in two parts and read again by three products: with
// few rows that takes longer than the one product does.
bool SplitProducts::large(const DeviceMatrix& w, Index rows) const {
  constexpr Index kFewRows = 512;
  if (w.in == 0 || mode_ == Mode::tf32) return false;
  if (w.type == kF32 && from_ > 0 && rows < kFewRows) return false;
  return static_cast<double>(rows) * w.in * w.out >= from_;
}

bool SplitProducts::pays(const DeviceMatrix& w, Index rows) const {
  return allowed() && large(w, rows);
}

// On an H200 with cuBLAS: single precision 52 TFLOP/s, two products of two bytes 348.
double SplitProducts::gain(const DeviceMatrix& w) const {
  constexpr double kSingle = 52, kTwoOfTwoBytes = 348;
  return (w.type == kF32 ? kTwoOfTwoBytes * 2 / 3 : kTwoOfTwoBytes) / kSingle;
}

const char* SplitProducts::words(const DeviceMatrix& w) const {
  if (kind_of(w) == Kind::bf16) return "two bf16 products";
  return w.type == kF32 ? "three products of halves" : "two products of halves";
}

template <typename Largest>
Array SplitProducts::unit_of_all(Largest largest, Index count, const Array& other) {
  const Index parts = (count + kLargestPart - 1) / kLargestPart;
  const Array some = device_->floats(parts);
  Array unit = device_->floats(2);
  largest.count = count;
  largest.out = ptr(some);
  device_->launch(largest, parts);
  device_->launch(UnitOfParts{ptr(some), parts, maybe(other), ptr(unit)}, 1);
  return unit;
}

Array SplitProducts::unit_of_rows(const float* rows, Index count, const Array& other) {
  LargestOfRuns largest{};
  largest.runs = {rows, count, nullptr, 0, 0, count, count, nullptr, 1.0F};
  largest.quads = in_quads(count) ? 1 : 0;
  return unit_of_all(largest, count, other);
}

// It stays the same as long as the weights do.
Array SplitProducts::unit_of_weights(const DeviceMatrix& w, const ScaledWeights& stored,
                                     int quads) {
  std::lock_guard lock(units_mutex_);
  auto& [weights, unit] = units_[w.data.get()];
  if (unit.empty() || weights.lock() != w.data) {
    weights = w.data;
    unit = unit_of_all(LargestOfWeights{stored, 0, quads, nullptr}, w.in * w.out, {});
  }
  return unit;
}

namespace {

// Of halves, behind their unit.
const float* times(const Array& unit) { return unit.empty() ? nullptr : ptr(unit) + 1; }

}  // namespace

Halves SplitProducts::Parts::to(Kind kind) const {
  return {high.get(), low.get(), rest.get(), maybe(unit), kind == Kind::bf16 ? 1 : 0};
}

SplitProducts::Weights SplitProducts::weights(const DeviceMatrix& w) {
  Weights out;
  out.kind = kind_of(w);
  out.turned = w.turned;
  out.in = w.in;
  out.out = w.out;
  out.scale = maybe(w.scale);
  out.factor = w.factor;
  if (w.type == kBf16 || w.type == kF16) {
    out.keep_high = w.data;
    out.high = w.data.get();
    return out;
  }
  const Index size = w.in * w.out;
  const int quads = in_quads(size) ? 1 : 0;
  const std::size_t bytes = size * factor_bytes(out.kind);
  Parts made{device_->bytes(bytes), nullptr, nullptr, {}};
  // As they are stored: neither their factor nor the norm's weight is part of them.
  const ScaledWeights stored{w.data.get(), w.type, 1.0F, 0, w.in, w.out, nullptr, 1.0F};
  if (out.kind == Kind::halves) {
    made.low = device_->bytes(bytes);
    made.unit = unit_of_weights(w, stored, quads);
    out.unit = made.unit;
  }
  device_->launch(SplitScaled{stored, made.to(out.kind), quads}, quads != 0 ? size / kLanes : size);
  out.keep_high = made.high;
  out.keep_low = made.low;
  out.high = out.keep_high.get();
  out.low = out.keep_low.get();
  return out;
}

SplitProducts::Parts SplitProducts::room_for(Index size, bool whole, Kind kind) {
  const std::size_t bytes = size * factor_bytes(kind);
  Parts out{device_->bytes(bytes), device_->bytes(bytes), nullptr, {}};
  if (whole && kind == Kind::bf16) out.rest = device_->bytes(bytes);
  return out;
}

SplitProducts::Parts SplitProducts::parts(const Runs& runs, const Weights& w) {
  const Index size = runs.run * runs.count;
  const int quads = in_quads(runs.run, runs.stride, runs.outer, w.in) ? 1 : 0;
  const ScaledRuns scaled{runs.from, runs.stride, runs.rows, runs.per, runs.outer,
                          runs.run,  w.in,        w.scale,   w.factor};
  Parts out = room_for(size, runs.whole, w.kind);
  if (w.kind == Kind::halves)
    out.unit = unit_of_all(LargestOfRuns{scaled, 0, quads, nullptr}, size, w.unit);
  device_->launch(SplitRows{scaled, out.to(w.kind), quads}, quads != 0 ? size / kLanes : size);
  return out;
}

// The small parts first.
void SplitProducts::add_up(const Parts& rows, const Weights& w, UnpackGemm call) {
  const auto product = [&](const std::shared_ptr<void>& a, const void* b) {
    call.a = a.get();
    call.b = b;
    device_->gemm(call, factors_of(w.kind), times(rows.unit));
    call.accumulate = 1;
  };
  if (rows.rest) product(rows.rest, w.high);
  product(rows.low, w.high);
  if (w.low != nullptr) product(rows.high, w.low);
  product(rows.high, w.high);
}

void SplitProducts::multiply(const Runs& runs, const Weights& w, float* c, Index ldc) {
  add_up(parts(runs, w), w,
         {w.turned ? 1 : 0, 0, runs.run * runs.count / w.in, w.out, w.in, nullptr, w.in, 0, nullptr,
          w.turned ? w.in : w.out, 0, c, ldc > 0 ? ldc : w.out, 0, 1});
}

void SplitProducts::multiply_stored(const DeviceMatrix& from, const Weights& w, float* c) {
  const Index size = from.in * from.out;
  const int quads = in_quads(from.in, from.out) ? 1 : 0;
  const ScaledWeights stored{from.data.get(), from.type, from.factor, from.turned ? 1 : 0,
                             from.in,         from.out,  w.scale,     w.factor};
  Parts rows = room_for(size, false, w.kind);
  if (w.kind == Kind::halves)
    rows.unit = unit_of_all(LargestOfWeights{stored, 0, quads, nullptr}, size, w.unit);
  device_->launch(SplitScaled{stored, rows.to(w.kind), quads}, quads != 0 ? size / kLanes : size);
  add_up(rows, w,
         {(w.turned ? UNPACK_B_TRANSPOSED : 0) | (from.turned ? UNPACK_A_TRANSPOSED : 0), 0,
          from.in, w.out, w.in, nullptr, from.turned ? from.in : w.in, 0, nullptr,
          w.turned ? w.in : w.out, 0, c, w.out, 0, 1});
}

std::shared_ptr<void> SplitProducts::stacked(const Heads& h, Index inner, Stacked as, Kind kind,
                                             const Array& unit) {
  const Index size = h.count * h.e * inner;
  const bool quads = in_quads(h.e * inner);
  std::shared_ptr<void> out = device_->bytes((3 * size) * factor_bytes(kind));
  const Index each = h.e * inner;
  const bool whole = h.own == h.taken && h.first == 0 && h.groups == 1 && as == Stacked::others;
  if (whole && kind != Kind::tf32 && each % 8 == 0) {
    const Index runs = (each + kStackRun - 1) / kStackRun;
    device_->launch(
        StackHeads{h.from, static_cast<std::uint16_t*>(out.get()), each, runs, maybe(unit)},
        h.count * runs);
    return out;
  }
  device_->launch(StackParts{h.from, out.get(), h.e, inner, h.own, h.first, h.taken,
                             as == Stacked::rows ? 0 : 1, h.count / h.taken, h.groups, maybe(unit),
                             kind == Kind::bf16 ? 1 : 0, quads ? 1 : 0},
                  quads ? size / kLanes : size);
  return out;
}

Array SplitProducts::stack(const Heads& h, Stacked as) {
  return {stacked(h, 1, as, Kind::tf32, {}), h.count * 3 * h.e};
}

SplitProducts::HeadWeights SplitProducts::head_weights(const Array& w, Index heads, Index e,
                                                       Index out, Kind kind) {
  const Array unit = kind == Kind::halves ? unit_of_rows(ptr(w), heads * e * out, {}) : Array();
  return {stacked({ptr(w), e, 1, 0, 1, heads}, out, Stacked::others, kind, unit),
          heads,
          e,
          out,
          kind,
          unit};
}

void SplitProducts::multiply_heads(const float* rows, Index count, const HeadWeights& w, float* c,
                                   Index ldc) {
  const Index depth = 3 * w.e;
  const Array unit =
      w.kind == Kind::halves ? unit_of_rows(rows, count * w.heads * w.e, w.unit) : Array();
  const auto a = stacked({rows, w.e, 1, 0, 1, count * w.heads}, 1, Stacked::rows, w.kind, unit);
  device_->gemm({0, 0, count, w.out, depth, a.get(), w.heads * depth, depth, w.stacked.get(), w.out,
                 depth * w.out, c, ldc, w.out, w.heads},
                factors_of(w.kind), times(unit));
}

}  // namespace unpack::backend::cuda
