#include "tokenizer/post_processor.h"

#include "tokenizer/step_list.h"
#include "tokenizer/utf8.h"

namespace unpack::tokenizer {
namespace {

constexpr std::size_t kMaxPrefix = 256;

void append_ids(const Fields& special, const Vocabulary& vocabulary, std::vector<TokenId>& prefix) {
  const JsonValue& ids = special.value("ids");
  if (!ids.is_array()) special.fail("ids", "must be a list");
  for (const JsonValue& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId ||
        vocabulary.spelling(id.get<TokenId>()) == nullptr) {
      special.fail("ids",
                   "holds " + in_quotes(id.dump(-1, ' ', true)) + ", which is the id of no token");
    }
    if (prefix.size() == kMaxPrefix)
      special.fail("ids",
                   "makes more than " + std::to_string(kMaxPrefix) + " tokens in front of a text");
    prefix.push_back(id.get<TokenId>());
  }
}

std::vector<TokenId> template_prefix(const Fields& step, const Vocabulary& vocabulary) {
  std::vector<TokenId> prefix;
  for (const Fields& item : step.objects("single")) {
    if (!item.missing("Sequence")) return prefix;
    const std::string name = item.object("SpecialToken").string("id");
    append_ids(step.object("special_tokens").object(name.c_str()), vocabulary, prefix);
  }
  step.fail("single", "has no Sequence, the place of the text itself");
}

}  // namespace

std::vector<TokenId> read_prefix(const Fields& file, const Vocabulary& vocabulary) {
  std::vector<TokenId> prefix;
  for (const Fields& step : flat_steps(file, "post_processor", "processors")) {
    const std::string type = step.string("type");
    if (type == "TemplateProcessing") {
      const std::vector<TokenId> outer = template_prefix(step, vocabulary);
      prefix.insert(prefix.begin(), outer.begin(), outer.end());
    } else if (type != "ByteLevel") {  // ByteLevel only trims offsets
      step.fail("type", in_quotes(type) +
                            " is not supported; a post-processor may be TemplateProcessing, "
                            "ByteLevel or a Sequence of these");
    }
  }
  return prefix;
}

}  // namespace unpack::tokenizer
