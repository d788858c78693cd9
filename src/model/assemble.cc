#include "model/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/fingerprint.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

WeightView& slot(ModelWeights& model, LayerWeights* layer, Role role) {
  switch (role) {
    case Role::embed:
      return model.embed;
    case Role::pos:
      return model.pos;
    case Role::final_norm_w:
      return model.final_norm.w;
    case Role::final_norm_b:
      return model.final_norm.b;
    case Role::unembed:
      return model.unembed;
    default:
      break;
  }
  if (layer == nullptr)
    throw InternalError("a family's table gives a layer's role to a tensor without a layer");
  switch (role) {
    case Role::attn_norm_w:
      return layer->attn_norm.w;
    case Role::attn_norm_b:
      return layer->attn_norm.b;
    case Role::mlp_norm_w:
      return layer->mlp_norm.w;
    case Role::mlp_norm_b:
      return layer->mlp_norm.b;
    case Role::w_q:
      return layer->w_q;
    case Role::w_k:
      return layer->w_k;
    case Role::w_v:
      return layer->w_v;
    case Role::b_q:
      return layer->b_q;
    case Role::b_k:
      return layer->b_k;
    case Role::b_v:
      return layer->b_v;
    case Role::w_o:
      return layer->w_o;
    case Role::b_o:
      return layer->b_o;
    case Role::q_norm:
      return layer->q_norm;
    case Role::k_norm:
      return layer->k_norm;
    case Role::w_in:
      return layer->w_in;
    case Role::w_up:
      return layer->w_up;
    case Role::b_in:
      return layer->b_in;
    case Role::b_up:
      return layer->b_up;
    case Role::w_out:
      return layer->w_out;
    case Role::b_out:
      return layer->b_out;
    default:
      throw InternalError("unknown tensor role");
  }
}

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
  Assembler(const ParsedConfig& parsed, const Checkpoint& checkpoint)
      : family_(*parsed.family), config_(parsed.config), checkpoint_(checkpoint), buffer_(kChunk) {
    model_.config = parsed.config.model;
    model_.storage = checkpoint.storage();
    if (checkpoint.mapped())
      model_.release = [](const void*, const std::byte* data, std::size_t bytes) {
        release_pages(data, bytes);
      };
  }

  ModelWeights run() {
    const std::vector<TensorRow> rows = family_.tensors(config_);
    for (const TensorRow& row : rows) {
      if (!row.per_layer()) take(row, require(row, row.name), nullptr);
    }
    take_head(rows);
    // Layers come into being one by one: a config that claims too many fails at the first that is
    // missing.
    for (int l = 0; l < model_.config.n_layers; ++l) {
      LayerWeights& layer = model_.layers.emplace_back();
      for (const TensorRow& row : rows) {
        if (row.per_layer()) take(row, require(row, tensor_name(row.name, l)), &layer);
      }
    }
    model_.config.dtype = dominant_dtype();
    model_.fingerprint = fingerprint_.text();
    return std::move(model_);
  }

 private:
  const Checkpoint::Entry* find(const std::string& name) const {
    if (const Checkpoint::Entry* entry = checkpoint_.find(name)) return entry;
    return name.starts_with(family_.prefix)
               ? checkpoint_.find(std::string_view(name).substr(family_.prefix.size()))
               : nullptr;
  }

  const Checkpoint::Entry& require(const TensorRow& row, const std::string& name) const {
    const Checkpoint::Entry* entry = find(name);
    if (entry == nullptr && !row.other_name.empty()) entry = find(row.other_name);
    if (entry == nullptr) {
      throw InputError(
          fmt::format("{}: tensor {} is missing, expected with shape [{}] by config.json",
                      checkpoint_.origin(), shown(name), joined(row.shape)));
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
        model_.unembed = model_.embed;
        return;
      }
    }
    if (entry == nullptr) {
      throw InputError(fmt::format(
          "{}: tensor {} is missing, expected with shape [{}] because tie_word_embeddings is false",
          checkpoint_.origin(), shown(head.name), joined(head.shape)));
    }
    take(head, *entry, nullptr);
    model_.config.tied_head = false;
  }

  void take(const TensorRow& row, const Checkpoint::Entry& entry, LayerWeights* layer) {
    const StoredTensor& stored = entry.tensor.stored;
    const auto fail = [&](const std::string& what) {
      throw InputError(fmt::format("{}: tensor {} {}", entry.origin, shown(stored.name), what));
    };
    if (!entry.tensor.readable) {
      fail(
          fmt::format("has type {}, expected F32, F16, BF16 or F64; quantised checkpoints are not "
                      "supported, use the original one",
                      shown(entry.tensor.dtype_name)));
    }
    if (stored.shape != row.shape) {
      fail(fmt::format("has shape [{}], expected [{}] by config.json", joined(stored.shape),
                       joined(row.shape)));
    }
    check_finite(entry, fail);
    fingerprint_.add(entry, row.name,
                     layer == nullptr ? -1 : static_cast<int>(model_.layers.size()) - 1);
    bytes_of_[static_cast<std::size_t>(stored.dtype)] += stored.bytes;
    for (const TensorPart& part : row.parts) {
      WeightView view = part.view;
      view.dtype = stored.dtype;
      view.data = stored.data + part.start * static_cast<std::int64_t>(dtype_size(stored.dtype));
      slot(model_, layer, part.role) = view;
    }
  }

  template <typename Fail>
  void check_finite(const Checkpoint::Entry& entry, Fail fail) {
    const StoredTensor& stored = entry.tensor.stored;
    const std::size_t size = dtype_size(stored.dtype);
    for (std::size_t at = 0; at < stored.bytes; at += kChunk) {
      const std::size_t n = std::min(kChunk, stored.bytes - at);
      const std::byte* data = Checkpoint::fetch(entry, at, n, buffer_.data());
      const std::int64_t bad =
          find_non_finite(data, stored.dtype, static_cast<std::int64_t>(n / size));
      if (bad < 0) continue;
      fail(fmt::format(
          "holds values that are no finite float32 number (element {} is {}); the file is damaged "
          "or its training diverged, use another checkpoint",
          at / size + static_cast<std::size_t>(bad), load_element(data, stored.dtype, bad)));
    }
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
  std::vector<std::byte> buffer_;
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

ModelWeights assemble(const ParsedConfig& parsed, const Checkpoint& checkpoint) {
  return Assembler(parsed, checkpoint).run();
}

}  // namespace unpack
