// What a loaded tokenizer holds, and how it is loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/vocabulary.h"
#include "unpack/tokenizer.h"

namespace unpack {

struct Tokenizer::Impl {
  tokenizer::Vocabulary vocabulary;  // of the model, and of the added tokens that it lacks
  tokenizer::Normalizer normalizer;
  tokenizer::AddedTokens added;
  tokenizer::PreTokenizer pre_tokenizer;
  tokenizer::Bpe bpe;
  tokenizer::Decoder decoder;
  std::vector<std::string> bytes;  // by id: what the token stands for
  std::vector<TokenId> prefix;
};

namespace tokenizer {

std::shared_ptr<const Tokenizer::Impl> load_tokenizer_json(std::string_view json,
                                                           const std::string& origin);
std::shared_ptr<const Tokenizer::Impl> load_vocab_and_merges(std::string_view vocab_json,
                                                             const std::string& vocab_origin,
                                                             std::string_view merges_txt,
                                                             const std::string& merges_origin);

}  // namespace tokenizer
}  // namespace unpack
