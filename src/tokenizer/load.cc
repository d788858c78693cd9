#include "tokenizer/impl.h"
#include "tokenizer/parse.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/step_list.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

void check_supported(const Fields& model) {
  // Old files name no type; those are BPE where they have merges.
  const std::string type = model.optional_string("type").value_or("BPE");
  if (type != "BPE")
    model.fail("type", in_quotes(type) + " is not supported; unpack reads BPE tokenizers only");
  if (!model.missing("dropout") && model.value("dropout") != 0)
    model.fail("dropout", "is not supported; set it to null");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.optional_string(affix).value_or("").empty()) model.fail(affix, "is not supported");
  }
  for (const char* part : {"vocab", "merges"}) {
    if (!model.value(part).is_null())
      model.fail(part,
                 "must be " + std::string(part == std::string("vocab") ? "an object" : "a list"));
  }
}

BpeOptions read_bpe_options(const Fields& model, const Vocabulary& vocabulary,
                            const std::vector<AddedToken>& added, bool byte_units) {
  BpeOptions options;
  options.byte_units = byte_units;
  options.ignore_merges = model.boolean("ignore_merges", false);
  options.byte_fallback = model.boolean("byte_fallback", false) &&
                          !byte_units;  // every byte has its own spelling there
  options.fuse_unk = model.boolean("fuse_unk", false);
  const std::string unk = model.optional_string("unk_token").value_or("");
  if (unk.empty()) return options;
  options.unk = vocabulary.find(unk);
  for (const AddedToken& token : added) {
    if (!options.unk && token.content == unk && token.id >= 0 && token.id <= kMaxTokenId)
      options.unk = token.id;
  }
  if (!options.unk) model.fail("unk_token", in_quotes(unk) + " is not in the vocabulary");
  return options;
}

// A token may stand both in the vocabulary and among the added ones, if both give it the same id.
void add_to_vocabulary(Vocabulary& vocabulary, const std::vector<AddedToken>& added,
                       const std::string& origin) {
  std::unordered_map<std::string_view, bool> seen;
  for (const AddedToken& token : added) {
    if (!seen.emplace(token.content, true).second)
      throw InputError(origin + ": added_tokens holds " + in_quotes(token.content) + " twice");
    const auto known = vocabulary.find(token.content);
    if (!known) {
      vocabulary.add(token.content, token.id, origin + ": added_tokens");
    } else if (*known != token.id) {
      throw InputError(origin + ": added_tokens gives " + in_quotes(token.content) + " the id " +
                       std::to_string(token.id) + ", the vocabulary " + std::to_string(*known));
    }
  }
}

std::vector<std::string> bytes_by_id(const Vocabulary& vocabulary,
                                     const std::vector<AddedToken>& added, const Decoder& decoder,
                                     const std::string& origin) {
  std::vector<std::string> bytes(vocabulary.size());
  std::size_t spelled = 0;
  std::size_t decoded = 0;
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    const std::string* spelling = vocabulary.spelling(id);
    if (spelling == nullptr) continue;
    bytes[id] = decoder.token_bytes(*spelling);
    spelled += spelling->size();
    decoded += bytes[id].size();
    if (decoded > growth_limit(spelled))
      throw InputError(origin + ": decoder makes the tokens grow without bound");
  }
  for (const AddedToken& token : added)
    bytes[token.id] = token.content;  // found in text as they are
  return bytes;
}

}  // namespace

std::shared_ptr<const Tokenizer::Impl> load_tokenizer_json(std::string_view json,
                                                           const std::string& origin) {
  ParsedTokenizer parsed = parse_tokenizer_json(json, origin);
  const Fields file(parsed.rest, origin, "");
  const Fields model = file.object("model");
  check_supported(model);
  Vocabulary vocabulary(std::move(parsed.vocab), origin);
  Normalizer normalizer(file);
  PreTokenizer pre_tokenizer(file);
  std::vector<AddedToken> added = read_added_tokens(file);
  Bpe bpe(vocabulary, parsed.merges,
          read_bpe_options(model, vocabulary, added, pre_tokenizer.byte_level()), origin);
  add_to_vocabulary(vocabulary, added, origin);
  Decoder decoder(file, pre_tokenizer.byte_level(), pre_tokenizer.metaspace());
  std::vector<std::string> bytes = bytes_by_id(vocabulary, added, decoder, origin);
  std::vector<TokenId> prefix = read_prefix(file, vocabulary);
  AddedTokens matcher(std::move(added), normalizer, origin);
  return std::make_shared<const Tokenizer::Impl>(Tokenizer::Impl{
      std::move(vocabulary), std::move(normalizer), std::move(matcher), std::move(pre_tokenizer),
      std::move(bpe), std::move(decoder), std::move(bytes), std::move(prefix)});
}

std::shared_ptr<const Tokenizer::Impl> load_vocab_and_merges(std::string_view vocab_json,
                                                             const std::string& vocab_origin,
                                                             std::string_view merges_txt,
                                                             const std::string& merges_origin) {
  Vocabulary vocabulary(parse_vocab_json(vocab_json, vocab_origin), vocab_origin);
  Normalizer normalizer;
  PreTokenizer pre_tokenizer = PreTokenizer::gpt2();
  std::vector<AddedToken> added;
  if (const auto id = vocabulary.find(kEndOfText)) {
    AddedToken& token = added.emplace_back();
    token.content = kEndOfText;
    token.id = *id;
    token.special = true;
  }
  BpeOptions options;
  options.byte_units = true;
  Bpe bpe(vocabulary, parse_merges_txt(merges_txt, merges_origin), options, merges_origin);
  Decoder decoder = Decoder::byte_level();
  std::vector<std::string> bytes = bytes_by_id(vocabulary, added, decoder, vocab_origin);
  AddedTokens matcher(std::move(added), normalizer, vocab_origin);
  return std::make_shared<const Tokenizer::Impl>(Tokenizer::Impl{std::move(vocabulary),
                                                                 std::move(normalizer),
                                                                 std::move(matcher),
                                                                 std::move(pre_tokenizer),
                                                                 std::move(bpe),
                                                                 std::move(decoder),
                                                                 std::move(bytes),
                                                                 {}});
}

}  // namespace unpack::tokenizer
