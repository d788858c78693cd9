#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";
constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kShort = 48;  // symbols; below it scanning all pairs beats a heap

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t count) {
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  shift_ = 64 - std::countr_zero(capacity);
  slots_.assign(capacity, {kEmpty, {kNoRank, -1}});
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = home(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {key, merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = home(key);
  while (slots_[at].key != kEmpty) {
    if (slots_[at].key == key) return &slots_[at].merge;
    at = (at + 1) & (slots_.size() - 1);
  }
  return nullptr;
}

Bpe::Bpe(const Vocabulary& vocabulary, const Merges& merges, const BpeOptions& options,
         const std::string& origin)
    : options_(options), merges_(merges.size()) {
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string& left = merges[i].first;
    const std::string& right = merges[i].second;
    joined.assign(left).append(right);
    const auto id = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (!found) {
        throw InputError(origin + ": merge " + std::to_string(i) + " (" + in_quotes(left) +
                         " with " + in_quotes(right) + ") needs the token " + in_quotes(token) +
                         ", which the vocabulary lacks");
      }
      return *found;
    };
    // One after the other: compilers differ in the order of arguments, and so would the complaint.
    const TokenId made = id(joined);
    const TokenId of_left = id(left), of_right = id(right);
    merges_.insert(of_left, of_right, {static_cast<std::uint32_t>(i), made});
  }
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling =
        options.byte_units ? byte_spelling(byte) : std::string(1, static_cast<char>(byte));
    of_byte_[byte] =
        options.byte_units || byte < 0x80 ? vocabulary.find(spelling).value_or(-1) : -1;
    fallback_[byte] =
        vocabulary.find(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">").value_or(-1);
  }
  for (std::size_t i = 0; i < vocabulary.size(); ++i) {
    const TokenId id = i;
    const std::string* spelling = vocabulary.spelling(id);
    if (spelling == nullptr || spelling->empty()) continue;
    if (!options.byte_units && utf8_length((*spelling)[0]) == spelling->size())
      of_char_.emplace(first_char(*spelling), id);
    if (!options.ignore_merges) continue;
    if (auto text = options.byte_units ? spelled_bytes(*spelling) : std::optional(*spelling))
      whole_.emplace(std::move(*text), id);
  }
  may_cut_ = find_may_cut(vocabulary, merges);
}

bool Bpe::find_may_cut(const Vocabulary& vocabulary, const Merges& merges) const {
  if (options_.byte_units || options_.ignore_merges || !vocabulary.find(kMetaspace)) return false;
  if (options_.unk) {  // an unknown character must not take part in a merge as if it were "▁"
    const std::string* unk = vocabulary.spelling(*options_.unk);
    if (unk == nullptr || unk->ends_with(kMetaspace)) return false;
  }
  return std::none_of(merges.begin(), merges.end(), [](const auto& merge) {
    const std::string joined = merge.first + merge.second;
    std::size_t text = 0;
    while (joined.compare(text, kMetaspace.size(), kMetaspace) == 0) text += kMetaspace.size();
    return joined.find(kMetaspace, text) != std::string::npos;
  });
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  if (piece.empty()) return;
  if (options_.ignore_merges) {
    const auto found = whole_.find(std::string(piece));
    if (found != whole_.end()) return ids.push_back(found->second);
  }
  std::vector<TokenId> symbols;
  symbols.reserve(piece.size());
  first_symbols(piece, symbols);
  symbols.size() <= kShort ? merge_short(symbols) : merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::first_symbols(std::string_view piece, std::vector<TokenId>& symbols) const {
  bool after_unk = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = options_.byte_units ? 1 : utf8_length(piece[at]);
    const std::string_view unit = piece.substr(at, length);
    at += length;
    TokenId id = -1;
    if (length == 1) {
      id = of_byte_[static_cast<unsigned char>(unit[0])];
    } else if (const auto found = of_char_.find(first_char(unit)); found != of_char_.end()) {
      id = found->second;
    }
    if (id >= 0) {
      symbols.push_back(id);
      after_unk = false;
      continue;
    }
    const auto fallback = [&](char byte) { return fallback_[static_cast<unsigned char>(byte)]; };
    if (options_.byte_fallback &&
        std::all_of(unit.begin(), unit.end(), [&](char byte) { return fallback(byte) >= 0; })) {
      for (const char byte : unit) symbols.push_back(fallback(byte));
      after_unk = false;
      continue;
    }
    if (options_.unk && !(after_unk && options_.fuse_unk)) symbols.push_back(*options_.unk);
    after_unk = true;
  }
}

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  std::size_t count = symbols.size();
  if (count < 2) return;
  std::array<MergeTable::Merge, kShort> merges;  // of each symbol with its right neighbour
  const auto look_up = [&](std::size_t i) {
    const MergeTable::Merge* found = merges_.find(symbols[i], symbols[i + 1]);
    merges[i] = found ? *found : MergeTable::Merge{kNoRank, -1};
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    symbols[best] = merges[best].token;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    if (best + 2 < count) std::copy(&merges[best + 2], &merges[count - 1], &merges[best + 1]);
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  symbols.resize(count);
}

// The merges that are possible now wait in a heap, lowest rank first and leftmost among equals;
// symbols form a linked list, and an entry whose pair has changed since is dropped when it comes
// up.
void Bpe::merge_long(std::vector<TokenId>& symbols) const {
  struct Entry {
    std::uint32_t rank;
    std::int32_t position;
    TokenId token;
    bool operator<(const Entry& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const std::int32_t count = symbols.size();
  std::vector<std::int32_t> next(symbols.size());
  std::vector<std::int32_t> previous(symbols.size());
  std::vector<Entry> entries;
  const auto candidate = [&](std::int32_t left, std::int32_t right) -> std::optional<Entry> {
    const MergeTable::Merge* merge = merges_.find(symbols[left], symbols[right]);
    if (merge == nullptr) return std::nullopt;
    return Entry{merge->rank, left, merge->token};
  };
  for (std::int32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 == count) break;
    if (const auto entry = candidate(i, i + 1)) entries.push_back(*entry);
  }
  std::priority_queue<Entry> heap(std::less<Entry>(), std::move(entries));
  constexpr TokenId kGone = -1;
  while (!heap.empty()) {
    const Entry top = heap.top();
    heap.pop();
    const std::int32_t left = top.position;
    if (symbols[left] == kGone || next[left] == count) continue;
    const std::int32_t right = next[left];
    const MergeTable::Merge* merge = merges_.find(symbols[left], symbols[right]);
    if (merge == nullptr || merge->token != top.token || merge->rank != top.rank) continue;
    symbols[left] = top.token;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] < count) {
      previous[next[left]] = left;
      if (const auto entry = candidate(left, next[left])) heap.push(*entry);
    }
    if (previous[left] >= 0) {
      if (const auto entry = candidate(previous[left], left)) heap.push(*entry);
    }
  }
  std::erase(symbols, kGone);
}

}  // namespace unpack::tokenizer
