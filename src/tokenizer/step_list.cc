#include "tokenizer/step_list.h"

#include "tokenizer/utf8.h"

namespace unpack::tokenizer {
namespace {

void flatten(const Fields& step, const char* list, std::vector<Fields>& steps) {
  if (step.string("type") != "Sequence") {
    if (steps.size() == kMaxSteps)
      step.fail("type", "is step " + std::to_string(kMaxSteps + 1) + "; more than " +
                            std::to_string(kMaxSteps) + " are not supported");
    steps.push_back(step);
    return;
  }
  for (const Fields& inner : step.objects(list)) flatten(inner, list, steps);
}

}  // namespace

std::vector<Fields> flat_steps(const Fields& file, const char* field, const char* list) {
  std::vector<Fields> steps;
  if (!file.missing(field)) flatten(file.object(field), list, steps);
  return steps;
}

Regex read_pattern(const Fields& step, const char* key) {
  const std::string field = step.origin() + ": " + step.name(key);
  const Fields pattern = step.object(key);
  if (const auto regex = pattern.optional_string("Regex"))
    return Regex(*regex, Regex::Kind::pattern, field);
  if (const auto text = pattern.optional_string("String")) {
    return text->empty() ? Regex("(?!)", Regex::Kind::pattern, field)
                         : Regex(*text, Regex::Kind::literal, field);
  }
  step.fail(key, "must have a String or a Regex");
}

std::string read_char(const Fields& step, const char* key) {
  std::string text = step.string(key);
  if (text.empty() || utf8_length(text[0]) != text.size()) step.fail(key, "must be one character");
  return text;
}

}  // namespace unpack::tokenizer
