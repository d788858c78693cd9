#include "model/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/index.h"
#include "base/message.h"
#include "base/system.h"
#include "base/thread_pool.h"
#include "model/blocks.h"
#include "model/fingerprint.h"
#include "model/mxfp4.h"
#include "model/value_checks.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

bool same_bytes(const Checkpoint::Entry& a, const Checkpoint::Entry& b) {
  const StoredTensor &x = a.tensor.stored, &y = b.tensor.stored;
  if (x.dtype != y.dtype || x.shape != y.shape || x.bytes != y.bytes) return false;
  std::vector<std::byte> left(kChunk), right(kChunk);
  for (std::size_t at = 0; at < x.bytes; at += kChunk) {
    const std::size_t n = std::min(kChunk, x.bytes - at);
    if (std::memcmp(Checkpoint::fetch(a, at, n, left.data()),
                    Checkpoint::fetch(b, at, n, right.data()), n) != 0)
      return false;
  }
  return true;
}

class Assembler {
 public:
  Assembler(const ParsedConfig& parsed, const Checkpoint& checkpoint, LookAt look)
      : family_(*parsed.family), config_(parsed.config), checkpoint_(checkpoint) {
    if (look == LookAt::used) later_ = model_.unseen = std::make_shared<ValueChecks>();
    model_.config = parsed.config.model;
    model_.storage = checkpoint.storage();
    if (checkpoint.mapped())
      model_.release = [](const void*, const std::byte* data, std::size_t bytes) {
        release_pages(data, bytes);
      };
  }

  ModelWeights run() {
    const std::vector<TensorRow> rows = family_.tensors(config_, -1);
    for (const TensorRow& row : rows) take(row, -1);
    take_head(rows);
    // Layers come into being one by one: a config that claims too many fails at the first that is
    // missing.
    for (int l = 0; l < model_.config.n_layers; ++l) {
      LayerWeights& layer = model_.layers.emplace_back();
      layer.experts.resize(model_.config.layer(l).n_experts);
      for (const TensorRow& row : family_.tensors(config_, l)) take(row, l);
    }
    model_.config.dtype = dominant_dtype();
    model_.fingerprint = fingerprint_.text();
    return std::move(model_);
  }

 private:
  const Checkpoint::Entry* find(const std::string& name) const {
    if (const Checkpoint::Entry* entry = checkpoint_.find(name)) return entry;
    if (!name.starts_with(family_.prefix)) return nullptr;
    const std::string rest = name.substr(family_.prefix.size());
    if (const Checkpoint::Entry* entry = checkpoint_.find(rest)) return entry;
    if (family_.other_prefix.empty()) return nullptr;
    const std::string inner(family_.other_prefix);
    const Checkpoint::Entry* entry = checkpoint_.find(inner + name);
    return entry != nullptr ? entry : checkpoint_.find(std::string(family_.prefix) + inner + rest);
  }

  const Checkpoint::Entry& require(const TensorRow& row, const std::string& name) const {
    const Checkpoint::Entry* entry = find(name);
    if (entry == nullptr && !row.other_name.empty()) entry = find(row.other_name);
    if (entry == nullptr) {
      throw InputError(
          fmt::format("{}: tensor {} is missing, expected with shape [{}] by config.json",
                      checkpoint_.origin(), base::shown(name), base::joined(row.shape)));
    }
    return *entry;
  }

  // A head in the file is used even where the config calls it tied, unless it repeats the
  // embedding.
  void take_head(const std::vector<TensorRow>& rows) {
    const TensorRow head = family_.head(config_);
    const Checkpoint::Entry* entry = find(head.name);
    if (entry == nullptr && !head.other_name.empty()) entry = find(head.other_name);
    if (model_.config.tied_head) {
      const auto is_embed = [](const TensorRow& row) {
        return row.parts.front().role == Role::embed;
      };
      const TensorRow& embed = *std::find_if(rows.begin(), rows.end(), is_embed);
      if (entry == nullptr || same_bytes(*entry, require(embed, embed.name))) {
        WeightView& out = model_[Role::unembed];
        out = model_[Role::embed];
        out.scale = 1.0;  // of the embedding alone
        return;
      }
    }
    if (entry == nullptr) {
      throw InputError(fmt::format(
          "{}: tensor {} is missing, expected with shape [{}] because tie_word_embeddings is false",
          checkpoint_.origin(), base::shown(head.name), base::joined(head.shape)));
    }
    take(head, *entry, -1);
    model_.config.tied_head = false;
  }

  void take(const TensorRow& row, int layer) {
    const std::string name = tensor_name(row.name, layer);
    if (row.mxfp4 && find(name) == nullptr) {
      take_mxfp4(row, name, layer);
    } else {
      take(row, require(row, name), layer);
    }
  }

  // A tensor that is not stored plainly: views count its elements as if it were.
  void take_encoded(const TensorRow& row, const Checkpoint::Entry& entry, int layer) {
    check_shape(entry, row.shape);
    if (row.parts.front().expert < 0) check_finite_encoded(entry);
    fingerprint_.add(entry, row.name, layer);
    const std::vector<Index>& shape = row.shape;
    const Index b = shape.back(), a = shape.size() > 1 ? shape[shape.size() - 2] : 1;
    // Where element x of the plain order stands.
    const auto place = [&](Index x) {
      return entry.transposed ? x / (a * b) * (a * b) + x % b * a + x / b % a : x;
    };
    for (const TensorPart& part : row.parts) {
      WeightView view = part.view;
      view.encoded = entry.encoded.get();
      if (is_plain(*view.encoded)) view.dtype = entry.tensor.stored.dtype;
      view.start = place(part.start);
      if (entry.transposed) {
        view.in_stride = part.view.in > 1 ? place(part.view.in_stride) : 0;
        view.out_stride = place(part.view.out_stride);
        view.block_stride = place(part.view.block_stride);
      }
      slot(layer, part) = view;
    }
    model_.encoded.push_back(entry.encoded);
  }

  void check_finite_encoded(const Checkpoint::Entry& entry) {
    constexpr Index kRun = 1 << 16;
    Index n = 1;
    for (const Index size : entry.tensor.stored.shape) n *= size;
    // The same numbers in another order.
    const StoredTensor& stored = entry.tensor.stored;
    if (is_plain(*entry.encoded) && stored.bytes == n * tensor::dtype_size(stored.dtype))
      return check_finite(entry);
    std::vector<float> values(kRun);
    for (Index at = 0; at < n; at += kRun) {
      const Index count = std::min(kRun, n - at);
      entry.encoded->decode(at, count, values.data());
      const Index bad = tensor::find_non_finite(reinterpret_cast<const std::byte*>(values.data()),
                                                DType::f32, count);
      if (bad >= 0)
        fail(entry, fmt::format("holds values that are no finite number (element {}); the file is "
                                "damaged",
                                at + bad));
    }
  }

  void take(const TensorRow& row, const Checkpoint::Entry& entry, int layer) {
    if (entry.encoded) return take_encoded(row, entry, layer);
    const StoredTensor& stored = entry.tensor.stored;
    check(entry, row.shape);
    // Experts are looked at when they are first used.
    if (row.parts.front().expert < 0) check_finite(entry);
    fingerprint_.add(entry, row.name, layer);
    bytes_of_[static_cast<std::size_t>(stored.dtype)] += stored.bytes;
    for (const TensorPart& part : row.parts) {
      WeightView view = part.view;
      view.dtype = stored.dtype;
      view.data = stored.data + part.start * tensor::dtype_size(stored.dtype);
      slot(layer, part) = view;
    }
  }

  void take_mxfp4(const TensorRow& row, const std::string& name, int layer) {
    // Unfolded the tensor is [experts, rows, columns]: the transpose of the plain one's matrices.
    const Index experts = row.shape[0], columns = row.shape[1], rows = row.shape[2];
    if (columns % base::kMxfp4Block != 0 && find(name + "_blocks") != nullptr) {
      throw InputError(
          fmt::format("{}: tensor {} has rows of {} numbers, which blocks of {} do not "
                      "divide evenly",
                      checkpoint_.origin(), base::shown(name), columns, base::kMxfp4Block));
    }
    const Index groups = columns / base::kMxfp4Block;
    const Checkpoint::Entry& blocks =
        require_stored(name + "_blocks", {experts, rows, groups, base::kMxfp4Block / 2});
    const Checkpoint::Entry& scales = require_stored(name + "_scales", {experts, rows, groups});
    for (const Checkpoint::Entry* entry : {&blocks, &scales}) fingerprint_.add(*entry, name, layer);
    auto encoded = make_mxfp4(blocks.tensor.stored.data, scales.tensor.stored.data);
    for (const TensorPart& part : row.parts) {
      WeightView view = part.view;
      view.encoded = encoded.get();
      view.start =
          part.start / (columns * rows) * columns * rows + part.start % (columns * rows) * columns;
      view.in_stride = 1;
      view.block_stride = 0;
      view.out_stride = part.view.out_stride * columns;
      slot(layer, part) = view;
    }
    model_.encoded.push_back(std::move(encoded));
  }

  const Checkpoint::Entry& require_stored(const std::string& name,
                                          const std::vector<Index>& shape) const {
    const Checkpoint::Entry& entry = require({name, shape, {}}, name);
    if (entry.tensor.dtype_name != "U8") fail(entry, "has another type than U8");
    check_shape(entry, shape);
    return entry;
  }

  WeightView& slot(int layer, const TensorPart& part) {
    if (layer < 0) return model_[part.role];
    LayerWeights& weights = model_.layers.back();
    return part.expert < 0 ? weights[part.role] : weights.experts[part.expert][part.role];
  }

  [[noreturn]] static void fail(const Checkpoint::Entry& entry, const std::string& what) {
    throw InputError(
        fmt::format("{}: tensor {} {}", entry.origin, base::shown(entry.tensor.stored.name), what));
  }

  static void check_shape(const Checkpoint::Entry& entry, const std::vector<Index>& shape) {
    if (entry.tensor.stored.shape == shape) return;
    fail(entry, fmt::format("has shape [{}], expected [{}] by config.json",
                            base::joined(entry.tensor.stored.shape), base::joined(shape)));
  }

  static void check(const Checkpoint::Entry& entry, const std::vector<Index>& shape) {
    if (!entry.tensor.readable) {
      fail(entry, fmt::format("has type {}, expected F32, F16, BF16 or F64; quantised checkpoints "
                              "are not supported, use the original one",
                              base::shown(entry.tensor.dtype_name)));
    }
    check_shape(entry, shape);
  }

  // Of large models halves are used where they lie, so that their pages are wanted anyway.
  void check_finite(const Checkpoint::Entry& entry) {
    const StoredTensor& stored = entry.tensor.stored;
    const bool in_place = is_large_half(stored);
    if (in_place && later_) return later_->add(stored, entry.origin);
    check_values(
        stored, entry.origin,
        [&](std::size_t at, std::size_t n, std::byte* buffer) {
          if (!in_place) return Checkpoint::fetch(entry, at, n, buffer);
          base::will_read(stored.data + at, n);
          return stored.data + at;
        },
        pool_);
  }

  DType dominant_dtype() const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < std::size(bytes_of_); ++i)
      best = bytes_of_[i] > bytes_of_[best] ? i : best;
    return static_cast<DType>(best);
  }

  const Family& family_;
  const FamilyConfig& config_;
  const Checkpoint& checkpoint_;
  std::optional<base::ThreadPool> pool_;  // once there is a large tensor
  std::shared_ptr<ValueChecks> later_;
  std::size_t bytes_of_[4] = {};
  Fingerprint fingerprint_;
  ModelWeights model_;
};

}  // namespace

std::string tensor_name(const std::string& pattern, int layer) {
  const std::size_t at = pattern.find("{}");
  return at == std::string::npos
             ? pattern
             : pattern.substr(0, at) + std::to_string(layer) + pattern.substr(at + 2);
}

ModelWeights assemble(const ParsedConfig& parsed, const Checkpoint& checkpoint, LookAt look) {
  return Assembler(parsed, checkpoint, look).run();
}

}  // namespace unpack::model
