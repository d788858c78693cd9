#include "backend/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace unpack::backend {

namespace {

double llama3(const Rope& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double ratio = rope.original_context / wavelength;
  if (ratio < rope.low_freq_factor) return frequency / rope.factor;
  if (ratio > rope.high_freq_factor) return frequency;
  const double smooth =
      (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Fast pairs stay as they are, slow ones are stretched, a ramp in between.
struct YarnRamp {
  double low, high;

  explicit YarnRamp(const Rope& rope) {
    const auto pair_of = [&](double beta) {
      return rope.dims * std::log(rope.original_context / (2 * std::numbers::pi * beta)) /
             (2 * std::log(rope.base));
    };
    low = pair_of(rope.beta_fast);
    high = pair_of(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rope.dims - 1.0);
    if (low == high) high += 0.001;
  }
  double operator()(int i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

}  // namespace

bool is_long_prompt(const Rope& rope, int context) {
  return rope.scaling == RopeScaling::longrope && context > rope.original_context;
}

bool same_rotary(const ModelConfig& config, int context, int other) {
  return std::all_of(config.layers.begin(), config.layers.end(), [&](const LayerConfig& layer) {
    return is_long_prompt(layer.rope, context) == is_long_prompt(layer.rope, other);
  });
}

std::vector<double> rotary_frequencies(const Rope& rope, int context) {
  std::vector<double> out;
  const YarnRamp ramp(rope);
  const std::vector<double>& factors =
      is_long_prompt(rope, context) ? rope.long_factor : rope.short_factor;
  for (int i = 0; i < rope.dims / 2; ++i) {
    double frequency = std::pow(rope.base, -2.0 * i / rope.dims);
    switch (rope.scaling) {
      case RopeScaling::none:
        break;
      case RopeScaling::linear:
        frequency /= rope.factor;
        break;
      case RopeScaling::llama3:
        frequency = llama3(rope, frequency);
        break;
      case RopeScaling::yarn:
        frequency = frequency / rope.factor * ramp(i) + frequency * (1 - ramp(i));
        break;
      case RopeScaling::longrope:
        frequency /= factors[i];
        break;
    }
    out.push_back(frequency);
  }
  return out;
}

}  // namespace unpack::backend
