// Byte-level and byte-fallback BPE tokenizers in the Hugging Face file formats.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"

namespace unpack {

class Tokenizer {
 public:
  // Reads tokenizer.json, or vocab.json + merges.txt, of a folder. Throws InputError that names the
  // file.
  static Tokenizer load(const std::filesystem::path& folder);
  static Tokenizer from_json(std::string_view tokenizer_json, const std::string& origin);
  static bool exists(const std::filesystem::path& folder);

  // Text must be valid UTF-8 (InputError otherwise). With recognise_special, special tokens written
  // in the text become one id.
  std::vector<TokenId> encode(std::string_view text, bool recognise_special = false) const;
  std::string decode(std::span<const TokenId> ids) const;

  // What the file's post-processor puts in front of a single text (BOS); empty where it adds
  // nothing.
  std::vector<TokenId> prefix() const;
  std::optional<TokenId> id_of(
      std::string_view token) const;  // of a vocabulary or added token as the file spells it

  // The bytes a token stands for, and the same as displayable UTF-8 (partial characters become
  // U+FFFD).
  std::string token_bytes(TokenId id) const;
  std::string token_text(TokenId id) const;
  std::size_t size() const;  // one past the largest id

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace unpack
