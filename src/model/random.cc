// Random weights of any shape, from the same tables that read checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/index.h"
#include "base/system.h"
#include "base/thread_pool.h"
#include "model/assemble.h"
#include "model/load.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

constexpr int kBuckets = 1 << 12;  // small enough for the first cache

// Quantiles of the normal distribution at the bounds of equally likely buckets: a draw is a bucket
// and a place in it, 16 random bits.
std::vector<float> normal_quantiles() {
  std::vector<float> bounds(kBuckets + 1);
  double x = 0.0;
  for (int i = kBuckets / 2; i <= kBuckets; ++i) {
    const double tail = std::max<double>(kBuckets - i, 0.25) /
                        kBuckets;  // P(X > x); the last bucket ends somewhere
    // Newton from the neighbour's quantile: the tail is convex here, so every step comes from the
    // left and converges.
    for (int step = 0; step < 6; ++step) {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
      x += (0.5 * std::erfc(x / std::sqrt(2.0)) - tail) / density;
    }
    bounds[i] = x;
    bounds[kBuckets - i] = -x;
  }
  return bounds;
}

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// mean + scale * normal, the same for a seed whatever came before.
void fill_normal(std::uint64_t seed, float mean, float scale, Index n, DType dtype,
                 std::byte* out) {
  static const std::vector<float> bounds = normal_quantiles();
  constexpr Index kBlock = 4096;
  float chunk[kBlock];
  std::uint64_t state = mix(seed);
  for (Index at = 0; at < n; at += kBlock) {
    for (Index i = 0; i < kBlock; i += 4) {
      const std::uint64_t bits = mix(state += 0x9E3779B97F4A7C15ull);
      for (int j = 0; j < 4; ++j) {
        const std::uint64_t draw = (bits >> (16 * j)) & 0xFFFF;
        const float low = bounds[draw >> 4], high = bounds[(draw >> 4) + 1];
        chunk[i + j] = mean + scale * (low + (high - low) * ((static_cast<int>(draw & 15)) + 0.5f) *
                                                 (1.0f / 16));
      }
    }
    tensor::store_run(chunk, std::min(kBlock, n - at), dtype, out + at * tensor::dtype_size(dtype));
  }
}

struct Distribution {
  float mean, scale;
};

Distribution distribution(const TensorPart& part, int n_layers) {
  const float shift = part.view.shift;
  const RoleFacts facts = facts_of(part.role);
  if (facts.kind == RoleKind::norm_weight || facts.kind == RoleKind::scale)
    return {1.0f - shift, 0.05f};
  // What the 2 L sublayers add to the stream stays of the size of what is there.
  const bool writes = facts.kind == RoleKind::matrix && facts.norm_w == Role::count;
  return {0.0f, writes ? 0.02f / std::sqrt(2.0f * n_layers) : 0.02f};
}

std::uint64_t name_hash(const std::string& name) {
  std::uint64_t hash = 0;
  for (const char c : name)
    hash = mix(hash ^ static_cast<unsigned char>(c)) + 0x9E3779B97F4A7C15ull;
  return hash;
}

// One block of memory in large pages: touching it first is a good part of the time.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    data_ = base::map_memory(bytes);
    if (data_ == nullptr)
      throw InputError(
          fmt::format("not enough memory for random weights of this shape ({:.1f} GiB)",
                      static_cast<double>(bytes) / (1 << 30)));
  }
  ~Arena() { base::unmap_memory(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

std::size_t tensor_bytes(const TensorRow& row, DType dtype) {
  std::size_t bytes = tensor::dtype_size(dtype);
  for (const Index n : row.shape) bytes *= n;
  return bytes;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

struct NamedRow {
  std::string name;
  TensorRow row;
};

std::size_t total_bytes(const std::vector<NamedRow>& rows, DType dtype) {
  const double there = base::system_memory().total;
  double bytes = 0;
  for (const NamedRow& row : rows) bytes += aligned(tensor_bytes(row.row, dtype));
  if (there > 0 && bytes > there) {
    throw InputError(fmt::format(
        "random weights of this shape take {:.1f} GiB, this machine has {:.1f} GiB of memory",
        bytes / (1 << 30), there / (1 << 30)));
  }
  return bytes;
}

}  // namespace

TensorSet random_tensors(std::string_view config_json, std::uint64_t seed, DType dtype) {
  const ParsedConfig parsed = parse_family_config(config_json, "config in memory");
  const ModelConfig& config = parsed.config.model;
  std::vector<NamedRow> rows;
  for (int layer = -1; layer < config.n_layers; ++layer) {
    for (TensorRow& row : parsed.family->tensors(parsed.config, layer)) {
      std::string name = tensor_name(row.name, layer);
      rows.push_back({std::move(name), std::move(row)});
    }
  }
  if (!config.tied_head) {
    TensorRow head = parsed.family->head(parsed.config);
    std::string name = head.name;
    rows.push_back({std::move(name), std::move(head)});
  }

  TensorSet set;
  const auto arena = std::make_shared<Arena>(total_bytes(rows, dtype));
  std::size_t offset = 0;
  struct Job {
    Distribution distribution;
    StoredTensor tensor;
    std::byte* to;
  };
  std::vector<Job> jobs;
  for (const NamedRow& row : rows) {
    const StoredTensor tensor{row.name, dtype, row.row.shape, arena->at(offset),
                              tensor_bytes(row.row, dtype)};
    jobs.push_back(
        {distribution(row.row.parts.front(), config.n_layers), tensor, arena->at(offset)});
    offset += aligned(tensor.bytes);
    set.tensors[tensor.name] = tensor;
  }
  // A tensor's values depend on the seed and its name alone, so that any thread may draw them.
  base::ThreadPool pool(0);
  pool.parallel_for(std::ssize(jobs), [&](Index i) {
    const Job& job = jobs[i];
    const Index n = job.tensor.bytes / tensor::dtype_size(dtype);
    fill_normal(seed * 0x2545F4914F6CDD1Dull + name_hash(job.tensor.name), job.distribution.mean,
                job.distribution.scale, n, dtype, job.to);
  });
  set.owner = arena;
  return set;
}

ModelWeights random_weights(std::string_view config_json, std::uint64_t seed, DType dtype) {
  const TensorSet set = random_tensors(config_json, seed, dtype);
  return from_memory(config_json, set.tensors, set.owner);
}

}  // namespace unpack::model
