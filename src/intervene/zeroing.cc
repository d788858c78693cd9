// Many copies of one prompt that differ in which embeddings are zero. What a position computes
// depends on the positions up to it alone, so that copies that begin alike share everything up to
// their first difference.
#include <algorithm>
#include <numeric>

#include "engine/state.h"
#include "forward/forward.h"
#include "unpack/intervene.h"

namespace unpack {

namespace {

constexpr std::int64_t kBatchRows = 2048;

// One copy: rows of its own for the positions from `shared` on; those before are those of the copy
// in front of it.
struct Copy {
  std::vector<bool> zero;  // [S]
  std::size_t set = 0;     // which of the caller's sets
  int shared = 0;
};

class Batch {
 public:
  Batch(Backend& backend, std::span<const TokenId> ids, std::span<const Copy> copies)
      : backend_(backend),
        c_(backend.config()),
        ids_(ids),
        length_(static_cast<int>(ids.size())),
        copies_(copies) {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const int shared = i == 0 ? 0 : copies[i].shared;
      segments_.push_back({rows_, length_ - shared, shared});
      key_begin_.push_back(static_cast<std::int64_t>(i) * length_);
      for (int s = shared; s < length_; ++s) positions_.push_back(s);
      rows_ += length_ - shared;
      last_.push_back(rows_ - 1);
    }
  }

  // Logits at the last position, a row per copy.
  std::vector<double> logits(const RunContext& context) {
    const std::int64_t d = c_.d_model, q_row = static_cast<std::int64_t>(c_.n_heads) * c_.d_head;
    const std::int64_t kv_row = static_cast<std::int64_t>(c_.n_kv_heads) * c_.d_head;
    const auto make = [&](std::int64_t width) { return backend_.zeros(rows_ * width); };
    const std::int64_t whole = static_cast<std::int64_t>(copies_.size()) * length_ * kv_row;
    Array x = embedded(), normalized = make(d), dev = make(1), out = make(d), block_input = make(d);
    Array q = make(q_row), k = make(kv_row), v = make(kv_row), z = make(q_row),
          keys = backend_.zeros(whole), values = backend_.zeros(whole), no_pattern;
    Array q_dev = make(c_.qk_norm ? c_.n_heads : 0), k_dev = make(c_.qk_norm ? c_.n_kv_heads : 0);
    Array pre = make(c_.d_mlp), up = make(c_.gated() ? c_.d_mlp : 0), act = make(c_.d_mlp);
    std::int64_t rows = rows_;
    for (int l = 0; l < c_.n_layers; ++l) {
      context.check();
      backend_.normalize(x, rows, normalized, dev);
      backend_.qkv(l, normalized, positions_, q, k, v, q_dev, k_dev);
      spread(k, kv_row, keys);
      spread(v, kv_row, values);
      backend_.attention(q, keys, values, segments_, key_begin_, no_pattern, z);
      if (l + 1 == c_.n_layers) {
        // Only the last position is read; the other rows end here.
        x = gather(x, d);
        z = gather(z, q_row);
        rows = static_cast<std::int64_t>(copies_.size());
      }
      backend_.copy(x, 0, block_input, 0, rows * d);
      backend_.attention_out(l, z, rows, out);
      backend_.add(out, x, rows * d);
      backend_.add_bias(l, Sublayer::attention, x, rows);
      backend_.normalize(c_.block == Block::parallel ? block_input : x, rows, normalized, dev);
      backend_.mlp_in(l, MlpSide::gate, normalized, rows, pre);
      if (c_.gated()) backend_.mlp_in(l, MlpSide::up, normalized, rows, up);
      backend_.activate(pre, up, act, rows * c_.d_mlp);
      backend_.mlp_out(l, act, rows, out);
      backend_.add(out, x, rows * d);
      backend_.add_bias(l, Sublayer::mlp, x, rows);
    }
    std::vector<std::int64_t> all(copies_.size());
    std::iota(all.begin(), all.end(), std::int64_t{0});
    std::vector<double> result;
    backend_.logits(x, all, result);
    return result;
  }

 private:
  Array embedded() {
    std::vector<TokenId> ids;
    for (const int s : positions_) ids.push_back(ids_[static_cast<std::size_t>(s)]);
    Array x = backend_.zeros(rows_ * c_.d_model);
    backend_.embed(ids, x);
    const std::vector<double> nothing(static_cast<std::size_t>(c_.d_model), 0.0);
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      for (int s = segments_[i].past; s < length_; ++s) {
        if (copies_[i].zero[static_cast<std::size_t>(s)])
          backend_.upload(x, (segments_[i].begin + s - segments_[i].past) * c_.d_model, nothing);
      }
    }
    if (c_.has_pos_writer()) {
      Array pos = backend_.zeros(rows_ * c_.d_model);
      backend_.embed_positions(positions_, pos);
      backend_.add(pos, x, rows_ * c_.d_model);
    }
    return x;
  }

  // Every copy's positions in one piece: the shared ones from the copy in front, then its own.
  void spread(const Array& from, std::int64_t width, Array& to) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const std::int64_t begin = key_begin_[i] * width, shared = segments_[i].past * width;
      if (shared > 0) backend_.copy(to, key_begin_[i - 1] * width, to, begin, shared);
      backend_.copy(from, segments_[i].begin * width, to, begin + shared,
                    segments_[i].length * width);
    }
  }

  Array gather(const Array& from, std::int64_t width) {
    Array to = backend_.zeros(static_cast<std::int64_t>(last_.size()) * width);
    for (std::size_t i = 0; i < last_.size(); ++i)
      backend_.copy(from, last_[i] * width, to, static_cast<std::int64_t>(i) * width, width);
    return to;
  }

  Backend& backend_;
  const ModelConfig& c_;
  std::span<const TokenId> ids_;
  int length_;
  std::span<const Copy> copies_;
  std::vector<Segment> segments_;
  std::vector<std::int64_t> key_begin_, last_;
  std::vector<int> positions_;
  std::int64_t rows_ = 0;
};

}  // namespace

std::vector<std::vector<double>> zeroed_logits(const Model& model, std::span<const TokenId> ids,
                                               const std::vector<std::vector<int>>& sets,
                                               int position, const RunContext& context) {
  check_prompt(model.config(), ids);
  const int at = resolve_position(position, static_cast<int>(ids.size()));
  const std::span<const TokenId> read =
      ids.first(static_cast<std::size_t>(at) + 1);  // nothing after it has a say
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    Copy copy{std::vector<bool>(ids.size(), false), i, 0};
    for (const int s : sets[i])
      copy.zero[static_cast<std::size_t>(resolve_position(s, static_cast<int>(ids.size())))] = true;
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
  const auto vocabulary = static_cast<std::ptrdiff_t>(model.config().vocab_size);
  for (std::size_t begin = 0; begin < copies.size();) {
    std::size_t end = begin;
    std::int64_t rows = 0;
    while (end < copies.size()) {
      const std::int64_t own = at + 1 - (end == begin ? 0 : copies[end].shared);
      if (end > begin && rows + own > kBatchRows) break;
      rows += own;
      ++end;
    }
    const std::vector<double> logits =
        Batch(*model.state()->backend, read, std::span(copies).subspan(begin, end - begin))
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
