#include "backend/rotary.h"

#include <cmath>
#include <numbers>

namespace unpack {

std::vector<double> rotary_frequencies(const Rope& rope) {
  std::vector<double> out;
  for (int i = 0; i < rope.dims / 2; ++i) {
    double frequency = std::pow(rope.base, -2.0 * i / rope.dims);
    if (rope.scaling == RopeScaling::linear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::llama3) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double ratio = rope.original_context / wavelength;
      if (ratio < rope.low_freq_factor) {
        frequency /= rope.factor;
      } else if (ratio <= rope.high_freq_factor) {
        const double smooth =
            (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
      }
    }
    out.push_back(frequency);
  }
  return out;
}

}  // namespace unpack
