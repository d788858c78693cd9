#include "unpack/tokenizer.h"

#include <deque>
#include <limits>
#include <unordered_map>

#include "base/files.h"
#include "tokenizer/impl.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using tokenizer::Piece;
using tokenizer::Section;

constexpr std::size_t kMaxFile = std::size_t{256} << 20;  // no tokenizer file is larger
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

std::string read_file(const fs::path& path) { return base::read_plain_file(path, kMaxFile); }

// Before every "▁" that does not itself follow one. Bpe says when this changes nothing but the time
// it takes.
std::vector<Piece> cut_before_metaspace(std::string_view text) {
  std::vector<Piece> pieces;
  std::size_t start = 0;
  for (std::size_t at = text.find(kMetaspace); at != std::string_view::npos;
       at = text.find(kMetaspace, at + kMetaspace.size())) {
    if (at == start || text.substr(0, at).ends_with(kMetaspace)) continue;
    pieces.push_back({text.substr(start, at - start), false});
    start = at;
  }
  if (start < text.size()) pieces.push_back({text.substr(start), false});
  return pieces;
}

// Words come back again and again in a text: their ids are copied from where they were first
// written.
class PieceEncoder {
 public:
  PieceEncoder(const tokenizer::Bpe& bpe, std::vector<TokenId>& ids) : bpe_(bpe), ids_(ids) {}

  void encode(std::string_view piece) {
    if (piece.size() > kLongest) return bpe_.encode(piece, ids_);
    const auto [found, fresh] = known_.try_emplace(piece, Range{ids_.size(), 0});
    if (fresh) {
      bpe_.encode(piece, ids_);
      found->second.count = ids_.size() - found->second.start;
    } else {
      const auto [start, count] = found->second;
      for (std::size_t i = 0; i < count; ++i) ids_.push_back(ids_[start + i]);
    }
  }

 private:
  static constexpr std::size_t kLongest = 256;
  struct Range {
    std::size_t start;
    std::size_t count;
  };
  const tokenizer::Bpe& bpe_;
  std::vector<TokenId>& ids_;
  std::unordered_map<std::string_view, Range> known_;
};

}  // namespace

Tokenizer Tokenizer::load(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json";
  if (base::is_there(json))
    return Tokenizer(tokenizer::load_tokenizer_json(read_file(json), json.string()));
  const fs::path vocab = folder / "vocab.json";
  const fs::path merges = folder / "merges.txt";
  if (base::is_there(vocab) && base::is_there(merges)) {
    return Tokenizer(tokenizer::load_vocab_and_merges(read_file(vocab), vocab.string(),
                                                      read_file(merges), merges.string()));
  }
  throw InputError(
      folder.string() +
      ": no tokenizer here; put tokenizer.json, or vocab.json and merges.txt, in this folder");
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, const std::string& origin) {
  return Tokenizer(tokenizer::load_tokenizer_json(tokenizer_json, origin));
}

bool Tokenizer::exists(const fs::path& folder) {
  return base::is_there(folder / "tokenizer.json") ||
         (base::is_there(folder / "vocab.json") && base::is_there(folder / "merges.txt"));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool recognise_special) const {
  if (const std::size_t bad = tokenizer::first_invalid_utf8(text); bad != std::string_view::npos) {
    throw InputError("the text is not valid UTF-8 at byte " + std::to_string(bad) +
                     "; convert it to UTF-8 first");
  }
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 8) {
    throw InputError("the text is longer than 256 MiB; encode it in parts");
  }
  std::vector<TokenId> ids;
  std::deque<std::string> storage;  // the pieces that the encoder remembers view it
  PieceEncoder encoder(impl_->bpe, ids);
  const bool cut = impl_->pre_tokenizer.empty() && impl_->bpe.may_cut_before_metaspace();
  for (const Section& raw : impl_->added.split_raw(text, recognise_special)) {
    if (raw.id != Section::kText) {
      ids.push_back(raw.id);
      continue;
    }
    const std::string_view normalized =
        impl_->normalizer.empty() ? raw.text
                                  : storage.emplace_back(impl_->normalizer.apply(raw.text));
    for (const Section& section : impl_->added.split_normalized(normalized, recognise_special)) {
      if (section.id != Section::kText) {
        ids.push_back(section.id);
        continue;
      }
      const bool opens_text =
          raw.text.data() == text.data() && section.text.data() == normalized.data();
      const std::vector<Piece> pieces =
          cut ? cut_before_metaspace(section.text)
              : impl_->pre_tokenizer.apply(section.text, opens_text, storage);
      for (const Piece& piece : pieces) encoder.encode(piece.text);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (impl_->vocabulary.spelling(id) != nullptr) bytes += impl_->bytes[id];
  }
  return impl_->decoder.finish(std::move(bytes));
}

std::vector<TokenId> Tokenizer::prefix() const { return impl_->prefix; }

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  return impl_->vocabulary.find(token);
}

std::string Tokenizer::token_bytes(TokenId id) const {
  return impl_->vocabulary.spelling(id) != nullptr ? impl_->bytes[id] : std::string();
}

std::string Tokenizer::token_text(TokenId id) const {
  // Models have padded vocabularies: an id without a token must still be displayable.
  if (impl_->vocabulary.spelling(id) == nullptr) return "[" + std::to_string(id) + "]";
  return tokenizer::repair_utf8(impl_->bytes[id]);
}

std::size_t Tokenizer::size() const { return impl_->vocabulary.size(); }

}  // namespace unpack
