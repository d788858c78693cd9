// Many copies of one prompt that differ in which embeddings are zero. What a position computes
// depends on the positions up to it alone, so that copies that begin alike share everything up to
// their first difference.
#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "engine/state.h"
#include "forward/block.h"
#include "unpack/intervene.h"

namespace unpack {

namespace {

constexpr Index kZeroedRows = 2048;

// One copy: rows of its own for the positions from `shared` on; those before are those of the copy
// in front of it.
struct Copy {
  std::vector<bool> zero;  // [S]
  std::size_t set = 0;     // which of the caller's sets
  int shared = 0;
};

class Copies {
 public:
  Copies(backend::Backend& backend, std::span<const TokenId> ids, std::span<const Copy> copies,
         int context)
      : backend_(backend), c_(backend.config()), ids_(ids), length_(ids.size()), copies_(copies) {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const int shared = i == 0 ? 0 : copies[i].shared;
      batch_.segments.push_back({batch_.rows(), length_ - shared, shared});
      batch_.key_begin.push_back(i * length_);
      for (int s = shared; s < length_; ++s) batch_.positions.push_back(s);
      last_.push_back(batch_.rows() - 1);
    }
    batch_.context = context;
  }

  // Logits at the last position, a row per copy.
  std::vector<double> logits(const RunContext& context) {
    const Index kv_row = static_cast<Index>(c_.n_kv_heads) * c_.d_head;
    const Index whole = std::ssize(copies_) * length_ * kv_row;
    backend::Array keys = backend_.zeros(whole), values = backend_.zeros(whole);
    forward::ForwardHooks hooks;
    hooks.embeddings = [this](backend::Array& emb) { zero(emb); };
    hooks.attended = [&](int, const backend::Array& k, const backend::Array& v,
                         const backend::Array*& all_keys, const backend::Array*& all_values) {
      spread(k, kv_row, keys);
      spread(v, kv_row, values);
      all_keys = &keys;
      all_values = &values;
    };
    // Only the last position of the last layer is read; the other rows end there.
    hooks.survivors = [this](int layer) -> std::optional<std::vector<Index>> {
      if (layer + 1 < c_.n_layers) return std::nullopt;
      return last_;
    };
    std::vector<TokenId> ids;
    for (const int s : batch_.positions) ids.push_back(ids_[s]);
    backend::Array x = forward::embed_rows(backend_, ids, batch_.positions, &hooks).x;
    forward::LayerPass scratch;
    for (int l = 0; l < c_.n_layers; ++l) {
      context.check();
      forward::run_block(backend_, l, batch_, &hooks, false, x, scratch);
    }
    std::vector<Index> all(copies_.size());
    std::iota(all.begin(), all.end(), Index{0});
    std::vector<double> result;
    backend_.logits(x, all, result);
    return result;
  }

 private:
  void zero(backend::Array& emb) {
    const std::vector<double> nothing(c_.d_model, 0.0);
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const backend::Segment& own = batch_.segments[i];
      for (int s = own.past; s < length_; ++s) {
        if (copies_[i].zero[s])
          backend_.upload(emb, (own.begin + s - own.past) * c_.d_model, nothing);
      }
    }
  }

  // Every copy's positions in one piece: the shared ones from the copy in front, then its own.
  void spread(const backend::Array& from, Index width, backend::Array& to) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const backend::Segment& own = batch_.segments[i];
      const Index begin = batch_.key_begin[i] * width, shared = own.past * width;
      if (shared > 0) backend_.copy(to, batch_.key_begin[i - 1] * width, to, begin, shared);
      backend_.copy(from, own.begin * width, to, begin + shared, own.length * width);
    }
  }

  backend::Backend& backend_;
  const ModelConfig& c_;
  std::span<const TokenId> ids_;
  int length_;
  std::span<const Copy> copies_;
  forward::Batch batch_;
  std::vector<Index> last_;
};

}  // namespace

std::vector<std::vector<double>> zeroed_logits(const Model& model, std::span<const TokenId> ids,
                                               const std::vector<std::vector<int>>& sets,
                                               int position, const RunContext& context) {
  forward::check_prompt(model.config(), ids);
  const int at = resolve_position(position, ids.size());
  const std::span<const TokenId> read = ids.first(at + 1);  // nothing after it has a say
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    Copy copy{std::vector<bool>(ids.size(), false), i, 0};
    for (const int s : sets[i]) copy.zero[resolve_position(s, ids.size())] = true;
    copy.zero.resize(read.size());
    copies.push_back(std::move(copy));
  }
  // In the order of a dictionary the copy in front has the longest beginning in common. A copy
  // keeps one row of its own even where it is the same throughout.
  std::stable_sort(copies.begin(), copies.end(),
                   [](const Copy& a, const Copy& b) { return a.zero < b.zero; });
  for (std::size_t i = 1; i < copies.size(); ++i) {
    const auto differ =
        std::mismatch(copies[i].zero.begin(), copies[i].zero.end(), copies[i - 1].zero.begin())
            .first;
    copies[i].shared = std::min(static_cast<int>(differ - copies[i].zero.begin()), at);
  }
  std::vector<std::vector<double>> out(sets.size());
  const std::ptrdiff_t vocabulary = model.config().vocab_size;
  for (std::size_t begin = 0; begin < copies.size();) {
    std::size_t end = begin;
    Index rows = 0;
    while (end < copies.size()) {
      const Index own = at + 1 - (end == begin ? 0 : copies[end].shared);
      if (end > begin && rows + own > kZeroedRows) break;
      rows += own;
      ++end;
    }
    const std::vector<double> logits =
        Copies(*engine::state_of(model)->backend, read,
               std::span(copies).subspan(begin, end - begin), ids.size())
            .logits(context);
    for (std::size_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::ptrdiff_t>(i - begin) * vocabulary;
      out[copies[i].set].assign(logits.begin() + row, logits.begin() + row + vocabulary);
    }
    begin = end;
  }
  return out;
}

}  // namespace unpack
