#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "tokenizer/step_list.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

std::string unicode_form(std::string text, int options) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return text;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), text.size(), &result,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (length < 0)
    throw InputError(std::string("the text cannot be normalised: ") + utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(result), length);
}

}  // namespace

Normalizer::Normalizer(const Fields& file) {
  for (const Fields& step : flat_steps(file, "normalizer", "normalizers")) {
    const std::string type = step.string("type");
    if (type == "NFC") {
      steps_.emplace_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_COMPOSE});
    } else if (type == "NFD") {
      steps_.emplace_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_DECOMPOSE});
    } else if (type == "NFKC") {
      steps_.emplace_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT});
    } else if (type == "NFKD") {
      steps_.emplace_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT});
    } else if (type == "Prepend") {
      steps_.emplace_back(Prepend{step.string("prepend")});
    } else if (type == "Replace") {
      steps_.emplace_back(Replace{read_pattern(step, "pattern"), step.string("content")});
    } else {
      step.fail("type", in_quotes(type) +
                            " is not supported; a normalizer may be NFC, NFD, NFKC, NFKD, Prepend, "
                            "Replace or a Sequence of these");
    }
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  const std::size_t limit = growth_limit(text.size());
  for (const auto& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      result = unicode_form(std::move(result), form->options);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!result.empty()) result.insert(0, prepend->text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      result = replace->pattern.replace(result, replace->content, limit);
    }
  }
  return result;
}

}  // namespace unpack::tokenizer
