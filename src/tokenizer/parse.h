// Reads the JSON of a tokenizer. The vocabulary and the merges, nearly all of such a file, go
// straight into flat lists: as JSON values they would cost several times their size in memory and
// time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unpack/json.h"

namespace unpack::tokenizer {

using Merges = std::vector<std::pair<std::string, std::string>>;

struct ParsedTokenizer {
  JsonValue rest;  // everything but model.vocab and model.merges, which are null in it where
                   // the file has them as object and list
  std::vector<std::pair<std::string, std::int64_t>> vocab;
  Merges merges;
};

// All throw InputError that names `origin` and the place.
ParsedTokenizer parse_tokenizer_json(std::string_view text, const std::string& origin);
std::vector<std::pair<std::string, std::int64_t>> parse_vocab_json(std::string_view text,
                                                                   const std::string& origin);
Merges parse_merges_txt(std::string_view text, const std::string& origin);

}  // namespace unpack::tokenizer
