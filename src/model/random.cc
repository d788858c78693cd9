// Random weights of any shape, from the same tables that read checkpoints.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <new>

#include "model/assemble.h"
#include "model/load.h"
#include "unpack/error.h"

namespace unpack {
namespace {

constexpr int kQuantiles = 1 << 16;

// Quantiles of the normal distribution: a draw is one look-up of 16 random bits.
std::vector<float> normal_quantiles() {
  std::vector<float> table(kQuantiles);
  double x = 0.0;
  for (int i = kQuantiles / 2; i < kQuantiles; ++i) {
    const double tail = (kQuantiles - i - 0.5) / kQuantiles;  // P(X > x)
    // Newton from the neighbour's quantile; the tail decreases, so every step comes from the left and converges.
    for (int step = 0; step < 4; ++step) {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
      x += (0.5 * std::erfc(x / std::sqrt(2.0)) - tail) / density;
    }
    table[static_cast<std::size_t>(i)] = static_cast<float>(x);
    table[static_cast<std::size_t>(kQuantiles - 1 - i)] = static_cast<float>(-x);
  }
  return table;
}

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// mean + scale * normal, the same for a seed whatever came before.
void fill_normal(std::uint64_t seed, float mean, float scale, std::int64_t n, DType dtype, std::byte* out) {
  static const std::vector<float> quantiles = normal_quantiles();
  constexpr std::int64_t kChunk = 4096;
  float chunk[kChunk];
  std::uint64_t state = mix(seed);
  for (std::int64_t at = 0; at < n; at += kChunk) {
    for (std::int64_t i = 0; i < kChunk; i += 4) {
      const std::uint64_t bits = mix(state += 0x9E3779B97F4A7C15ull);
      for (int j = 0; j < 4; ++j) chunk[i + j] = mean + scale * quantiles[(bits >> (16 * j)) & 0xFFFF];
    }
    store_run(chunk, std::min(kChunk, n - at), dtype, out + at * static_cast<std::int64_t>(dtype_size(dtype)));
  }
}

struct Distribution {
  float mean, scale;
};

Distribution distribution(Role role, int n_layers) {
  switch (role) {
    case Role::final_norm_w:
    case Role::attn_norm_w:
    case Role::mlp_norm_w:
    case Role::q_norm:
    case Role::k_norm:
      return {1.0f, 0.05f};
    case Role::w_o:
    case Role::w_out:
      // What the 2 L sublayers add to the stream stays of the size of what is there.
      return {0.0f, 0.02f / std::sqrt(2.0f * static_cast<float>(n_layers))};
    default:
      return {0.0f, 0.02f};
  }
}

std::uint64_t name_hash(const std::string& name) {
  std::uint64_t hash = 0;
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c)) + 0x9E3779B97F4A7C15ull;
  return hash;
}

void check_memory(const std::vector<TensorRow>& rows, int n_layers, DType dtype) {
  double bytes = 0;
  for (const TensorRow& row : rows) {
    double size = static_cast<double>(dtype_size(dtype)) * (row.per_layer() ? n_layers : 1);
    for (const std::int64_t n : row.shape) size *= static_cast<double>(n);
    bytes += size;
  }
  const double there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes > there) {
    throw InputError(fmt::format("random weights of this shape take {:.1f} GiB, this machine has {:.1f} GiB of memory", bytes / (1 << 30), there / (1 << 30)));
  }
}

}  // namespace

TensorSet random_tensors(std::string_view config_json, std::uint64_t seed, DType dtype) {
  const ParsedConfig parsed = parse_family_config(config_json, "config in memory");
  const ModelConfig& config = parsed.config.model;
  std::vector<TensorRow> rows = parsed.family->tensors(parsed.config);
  if (!config.tied_head) rows.push_back(parsed.family->head(parsed.config));
  check_memory(rows, config.n_layers, dtype);

  TensorSet set;
  const auto blocks = std::make_shared<std::vector<std::unique_ptr<std::byte[]>>>();
  for (const TensorRow& row : rows) {
    const Distribution d = distribution(row.parts.front().role, config.n_layers);
    for (int layer = 0; layer < (row.per_layer() ? config.n_layers : 1); ++layer) {
      StoredTensor tensor{tensor_name(row.name, layer), dtype, row.shape, nullptr, dtype_size(dtype)};
      std::int64_t n = 1;
      for (const std::int64_t size : row.shape) n *= size;
      tensor.bytes *= static_cast<std::size_t>(n);
      try {
        blocks->push_back(std::make_unique_for_overwrite<std::byte[]>(tensor.bytes));
      } catch (const std::bad_alloc&) {
        throw InputError(fmt::format("not enough memory for random weights of this shape (tensor {})", tensor.name));
      }
      fill_normal(seed * 0x2545F4914F6CDD1Dull + name_hash(tensor.name), d.mean, d.scale, n, dtype, blocks->back().get());
      tensor.data = blocks->back().get();
      set.tensors[tensor.name] = tensor;
    }
  }
  set.owner = blocks;
  return set;
}

ModelWeights random_weights(std::string_view config_json, std::uint64_t seed, DType dtype) {
  const TensorSet set = random_tensors(config_json, seed, dtype);
  return from_memory(config_json, set.tensors, set.owner);
}

}  // namespace unpack
