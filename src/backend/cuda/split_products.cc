#include "backend/cuda/split_products.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace unpack::backend::cuda {

namespace {

bool exact_in_bf16(const DeviceMatrix& w) { return w.type == kBf16 || w.type == kMxfp4; }

std::size_t factor_bytes(bool bf16) { return bf16 ? sizeof(std::uint16_t) : sizeof(float); }

}  // namespace

SplitProducts::SplitProducts(std::shared_ptr<Device> device, Mode mode)
    : device_(std::move(device)), mode_(mode), from_(device_->info().tensor_work) {}

// Single-precision weights are read, written in two parts and read again by three products: with
// few rows that takes longer than the one product does.
bool SplitProducts::large(const DeviceMatrix& w, std::int64_t rows) const {
  constexpr std::int64_t kFewRows = 512;
  if (w.in == 0 || mode_ == Mode::tf32) return false;
  if (!exact_in_bf16(w) && from_ > 0 && rows < kFewRows) return false;
  return static_cast<double>(rows) * static_cast<double>(w.in) * static_cast<double>(w.out) >=
         static_cast<double>(from_);
}

bool SplitProducts::pays(const DeviceMatrix& w, std::int64_t rows) const {
  return allowed() && large(w, rows);
}

// On an H200 with cuBLAS: single precision 52 TFLOP/s, two products of bf16 348, one of TF32 about
// 340.
double SplitProducts::gain(const DeviceMatrix& w) const {
  constexpr double kSingle = 52, kTwoBf16 = 348, kTf32 = 340;
  if (exact_in_bf16(w)) return kTwoBf16 / kSingle;
  return kTf32 / (w.type == kF32 ? 3 : 2) / kSingle;
}

const char* SplitProducts::words(const DeviceMatrix& w) const {
  return exact_in_bf16(w) ? "two bf16 products"
         : w.type == kF32 ? "three TF32 products"
                          : "two TF32 products";
}

SplitProducts::Weights SplitProducts::weights(const DeviceMatrix& w) {
  Weights out;
  out.bf16 = exact_in_bf16(w);
  out.turned = w.turned;
  out.in = w.in;
  out.out = w.out;
  out.scale = maybe(w.scale);
  out.factor = w.factor;
  if (w.type == kBf16) {
    out.keep_high = w.data;
    out.high = w.data.get();
    return out;
  }
  const std::int64_t size = w.in * w.out;
  const std::size_t bytes = static_cast<std::size_t>(size) * factor_bytes(out.bf16);
  out.keep_high = device_->bytes(bytes);
  if (w.type == kF32) out.keep_low = device_->bytes(bytes);
  out.high = out.keep_high.get();
  out.low = out.keep_low.get();
  device_->launch(SplitStored{w.data.get(),
                              w.type,
                              {out.keep_high.get(), out.keep_low.get(), nullptr, out.bf16 ? 1 : 0}},
                  size);
  return out;
}

SplitProducts::Parts SplitProducts::parts(const Runs& runs, const Weights& w) {
  const std::int64_t size = runs.run * runs.count;
  const std::size_t bytes = static_cast<std::size_t>(size) * factor_bytes(w.bf16);
  Parts out{device_->bytes(bytes), device_->bytes(bytes), nullptr};
  if (runs.whole && w.bf16) out.rest = device_->bytes(bytes);
  device_->launch(SplitRows{runs.from,
                            runs.stride,
                            runs.rows,
                            runs.run,
                            w.in,
                            w.scale,
                            w.factor,
                            {out.high.get(), out.low.get(), out.rest.get(), w.bf16 ? 1 : 0}},
                  size);
  return out;
}

// The small parts first.
void SplitProducts::add_up(const Parts& rows, const Weights& w, UnpackGemm call) {
  const auto product = [&](const std::shared_ptr<void>& a, const void* b) {
    call.a = a.get();
    call.b = b;
    device_->gemm(call, w.bf16 ? UNPACK_FACTORS_BF16 : UNPACK_FACTORS_TF32);
    call.accumulate = 1;
  };
  if (rows.rest) product(rows.rest, w.high);
  product(rows.low, w.high);
  if (w.low != nullptr) product(rows.high, w.low);
  product(rows.high, w.high);
}

void SplitProducts::multiply(const Runs& runs, const Weights& w, float* c, std::int64_t ldc) {
  add_up(parts(runs, w), w,
         {w.turned ? 1 : 0, 0, runs.run * runs.count / w.in, w.out, w.in, nullptr, w.in, 0, nullptr,
          w.turned ? w.in : w.out, 0, c, ldc > 0 ? ldc : w.out, 0, 1});
}

std::shared_ptr<void> SplitProducts::stacked(const Heads& h, std::int64_t inner, Stacked as,
                                             bool bf16) {
  const std::int64_t size = h.count * h.e * inner;
  std::shared_ptr<void> out =
      device_->bytes(static_cast<std::size_t>(3 * size) * factor_bytes(bf16));
  device_->launch(
      StackParts{h.from, out.get(), h.e, inner, h.own, h.first, h.taken,
                 as == Stacked::rows ? 0 : 1, h.count / h.taken, h.groups, bf16 ? 1 : 0},
      size);
  return out;
}

Array SplitProducts::stack(const Heads& h, Stacked as) {
  return {stacked(h, 1, as, false), h.count * 3 * h.e};
}

SplitProducts::HeadWeights SplitProducts::head_weights(const Array& w, std::int64_t heads,
                                                       std::int64_t e, std::int64_t out,
                                                       bool bf16) {
  return {stacked({ptr(w), e, 1, 0, 1, heads}, out, Stacked::others, bf16), heads, e, out, bf16};
}

void SplitProducts::multiply_heads(const float* rows, std::int64_t count, const HeadWeights& w,
                                   float* c, std::int64_t ldc) {
  const std::int64_t depth = 3 * w.e;
  const auto a = stacked({rows, w.e, 1, 0, 1, count * w.heads}, 1, Stacked::rows, w.bf16);
  device_->gemm({0, 0, count, w.out, depth, a.get(), w.heads * depth, depth, w.stacked.get(), w.out,
                 depth * w.out, c, ldc, w.out, w.heads},
                w.bf16 ? UNPACK_FACTORS_BF16 : UNPACK_FACTORS_TF32);
}

}  // namespace unpack::backend::cuda
