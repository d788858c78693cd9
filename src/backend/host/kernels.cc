#include "backend/host/kernels.h"

#include <algorithm>
#include <cmath>

// GCC compiles each marked function three times and picks one when the program starts. Sanitizers do not get along with that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define UNPACK_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define UNPACK_MULTIVERSION
#endif

namespace unpack {

namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588;

// Writers are added up in single precision eight at a time, then in double: the rounding of eight terms is all that is lost.
UNPACK_MULTIVERSION void reduce_float(const float* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum, double* abs, double* square) {
  constexpr std::int64_t kGroup = 8;
  for (std::int64_t r = 0; r < rows; r += kGroup) {
    const std::int64_t group = std::min(kGroup, rows - r);
    if (group == kGroup) {
      const float* p = tile + r * ld;
      for (std::int64_t c = 0; c < n; ++c) {
        const float a0 = p[c], a1 = p[c + ld], a2 = p[c + 2 * ld], a3 = p[c + 3 * ld];
        const float a4 = p[c + 4 * ld], a5 = p[c + 5 * ld], a6 = p[c + 6 * ld], a7 = p[c + 7 * ld];
        sum[c] += static_cast<double>(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)));
        abs[c] += static_cast<double>(((std::fabs(a0) + std::fabs(a1)) + (std::fabs(a2) + std::fabs(a3))) +
                                      ((std::fabs(a4) + std::fabs(a5)) + (std::fabs(a6) + std::fabs(a7))));
      }
    } else {
      for (std::int64_t i = 0; i < group; ++i) {
        const float* p = tile + (r + i) * ld;
        for (std::int64_t c = 0; c < n; ++c) {
          sum[c] += static_cast<double>(p[c]);
          abs[c] += static_cast<double>(std::fabs(p[c]));
        }
      }
    }
    for (std::int64_t i = 0; i < group; ++i) {
      const float* p = tile + (r + i) * ld;
      float lanes[16] = {};
      std::int64_t c = 0;
      for (; c + 16 <= n; c += 16) {
        for (int j = 0; j < 16; ++j) lanes[j] += p[c + j] * p[c + j];
      }
      double total = 0;
      for (; c < n; ++c) total += static_cast<double>(p[c]) * static_cast<double>(p[c]);
      for (const float lane : lanes) total += static_cast<double>(lane);
      square[r + i] += total;
    }
  }
}

UNPACK_MULTIVERSION void row_sums_float(const float* row, std::int64_t n, double& sum, double& abs) {
  double s[8] = {};
  double a[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) {
      s[j] += static_cast<double>(row[i + j]);
      a[j] += static_cast<double>(std::fabs(row[i + j]));
    }
  }
  sum = 0;
  abs = 0;
  for (; i < n; ++i) {
    sum += static_cast<double>(row[i]);
    abs += static_cast<double>(std::fabs(row[i]));
  }
  for (int j = 0; j < 8; ++j) {
    sum += s[j];
    abs += a[j];
  }
}

UNPACK_MULTIVERSION void axpy_float(std::int64_t n, float scale, const float* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

UNPACK_MULTIVERSION float dot_float(std::int64_t n, const float* x, const float* y) {
  float lanes[32] = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int j = 0; j < 32; ++j) lanes[j] += x[i + j] * y[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i] * y[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

// e^x to about one unit in the last place, without a branch or a call, so that the loops around it are vectorised.
[[gnu::always_inline]] inline float exp_inline(float x) {
  // std::min, std::max and std::bit_cast stay calls in functions that are compiled several times.
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: what is added to it is rounded to an integer, which its last bits then hold
  const float rounded = x * 1.44269504088896F + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  const std::int32_t power = (__builtin_bit_cast(std::int32_t, rounded) - __builtin_bit_cast(std::int32_t, kRound)) * (1 << 23);
  return __builtin_bit_cast(float, __builtin_bit_cast(std::int32_t, p) + power);
}

UNPACK_MULTIVERSION void silu_float(const float* in, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] / (1.0F + exp_inline(-in[i]));
}

// (1 + tanh u) / 2 = 1 / (1 + e^(-2u)), which keeps its digits where the tanh is near -1.
UNPACK_MULTIVERSION void gelu_tanh_float(const float* in, float* out, std::int64_t n) {
  constexpr auto kScale = static_cast<float>(-2 * kSqrt2OverPi);
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = in[i];
    out[i] = x / (1.0F + exp_inline(kScale * (x + 0.044715F * x * x * x)));
  }
}

// The normal distribution's tail at |x| is e^(-x^2/2) / 2 times a function of 1 / (1 + 0.37 |x| / sqrt 2) that a polynomial meets to 2e-8 of its value
// (least squares, reweighted until the largest error is smallest).
UNPACK_MULTIVERSION void gelu_erf_float(const float* in, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = in[i];
    const float z = std::fabs(x);
    const float t = 1.0F / (1.0F + static_cast<float>(0.37 * 0.70710678118654752440) * z);
    float p = 0.06192673067569479F;
    p = p * t - 0.3032900660279246F;
    p = p * t + 0.48687563748046375F;
    p = p * t - 0.28534880788980027F;
    p = p * t + 0.31082627529546564F;
    p = p * t + 0.10651052076713248F;
    p = p * t + 0.2062564088810365F;
    p = p * t + 0.20742952199826903F;
    p = p * t + 0.20881376177567823F;
    const float tail = 0.5F * p * t * exp_inline(-0.5F * z * z);
    out[i] = x * (x > 0 ? 1.0F - tail : tail);
  }
}

}  // namespace

template <>
void reduce_writers<float>(const float* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum, double* abs, double* square) {
  reduce_float(tile, rows, n, ld, sum, abs, square);
}

template <>
void reduce_writers<double>(const double* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum, double* abs, double* square) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      const double x = tile[r * ld + c];
      sum[c] += x;
      abs[c] += std::fabs(x);
      square[r] += x * x;
    }
  }
}

template <>
void row_sums<float>(const float* row, std::int64_t n, double& sum, double& abs) {
  row_sums_float(row, n, sum, abs);
}

template <>
void row_sums<double>(const double* row, std::int64_t n, double& sum, double& abs) {
  sum = 0;
  abs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += row[i];
    abs += std::fabs(row[i]);
  }
}

template <>
void axpy<float>(std::int64_t n, float scale, const float* x, float* y) {
  axpy_float(n, scale, x, y);
}

template <>
void axpy<double>(std::int64_t n, double scale, const double* x, double* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

template <>
float dot<float>(std::int64_t n, const float* x, const float* y) {
  return dot_float(n, x, y);
}

template <>
double dot<double>(std::int64_t n, const double* x, const double* y) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <typename T>
void softmax_row(T* row, std::int64_t n, T scale) {
  T largest = row[0];
  for (std::int64_t i = 1; i < n; ++i) largest = std::max(largest, row[i]);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    row[i] = std::exp((row[i] - largest) * scale);
    sum += static_cast<double>(row[i]);
  }
  const T inverse = static_cast<T>(1.0 / sum);
  for (std::int64_t i = 0; i < n; ++i) row[i] *= inverse;
}

template <typename T>
void activate_run(Activation activation, const T* in, T* out, std::int64_t n) {
  if constexpr (sizeof(T) == 4) {
    if (activation == Activation::gelu_erf) return gelu_erf_float(in, out, n);
    if (activation == Activation::gelu_tanh) return gelu_tanh_float(in, out, n);
    if (activation == Activation::silu) return silu_float(in, out, n);
  }
  switch (activation) {
    case Activation::gelu_erf:
      for (std::int64_t i = 0; i < n; ++i) out[i] = T(0.5) * in[i] * (T(1) + std::erf(in[i] * T(0.70710678118654752440)));
      return;
    case Activation::gelu_tanh:
      for (std::int64_t i = 0; i < n; ++i) {
        const T x = in[i];
        out[i] = T(0.5) * x * (T(1) + std::tanh(T(kSqrt2OverPi) * (x + T(0.044715) * x * x * x)));
      }
      return;
    case Activation::relu:
      for (std::int64_t i = 0; i < n; ++i) out[i] = std::max(in[i], T(0));
      return;
    case Activation::silu:
      for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] / (T(1) + std::exp(-in[i]));
      return;
  }
}

double activate_one(Activation activation, double x) {
  double y = 0;
  activate_run(activation, &x, &y, 1);
  return y;
}

const char* kernel_name() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
  return "portable";
}

template void softmax_row<float>(float*, std::int64_t, float);
template void softmax_row<double>(double*, std::int64_t, double);
template void activate_run<float>(Activation, const float*, float*, std::int64_t);
template void activate_run<double>(Activation, const double*, double*, std::int64_t);

}  // namespace unpack
