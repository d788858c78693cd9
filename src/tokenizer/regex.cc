#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <new>

#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

constexpr std::size_t kMaxPattern = 1 << 16;
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

// PCRE2's own \s also takes U+180E, which Unicode no longer counts as white space and Oniguruma
// does not match.
constexpr const char* kSpaces =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string with_unicode_spaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? kSpaces : std::string("[") + kSpaces + "]";
      } else if (escaped == 'S' && !in_class) {
        out += std::string("[^") + kSpaces + "]";
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']')
        out += pattern[++i];  // a first ']' stands for itself
      continue;
    }
    if (c == '[' && i + 1 < pattern.size() &&
        pattern[i + 1] == ':') {  // a POSIX class within the class
      const std::size_t close = pattern.find(":]", i + 2);
      if (close != std::string_view::npos) {
        out += pattern.substr(i, close + 2 - i);
        i = close + 1;
        continue;
      }
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct Regex::Program {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }
};

Regex::Regex(std::string_view pattern, Kind kind, const std::string& field) : field_(field) {
  if (pattern.size() > kMaxPattern)
    throw InputError(field + " is a pattern of more than " + std::to_string(kMaxPattern) +
                     " bytes");
  const auto program = std::make_shared<Program>();
  const std::string translated =
      kind == Kind::literal ? std::string(pattern) : with_unicode_spaces(pattern);
  // Oniguruma's ^ and $ work on lines.
  const std::uint32_t options =
      PCRE2_UTF | (kind == Kind::literal ? PCRE2_LITERAL
                                         : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  program->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                options, &error, &offset, nullptr);
  if (program->code == nullptr) {
    PCRE2_UCHAR reason[160] = {};
    pcre2_get_error_message(error, reason, sizeof reason);
    throw InputError(field + " is a pattern that does not compile: " +
                     reinterpret_cast<const char*>(reason) + " in " + in_quotes(pattern));
  }
  // Where there is no just-in-time compiler, pcre2_match interprets: slower, same result.
  pcre2_jit_compile(program->code, PCRE2_JIT_COMPLETE);
  program->context = pcre2_match_context_create(nullptr);
  if (program->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(program->context, kMatchLimit);
  pcre2_set_heap_limit(program->context, kHeapLimitKib);
  program_ = program;
}

void Regex::Scan::Free::operator()(void* data) const {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(data));
}

// One pair of offsets is enough: only the whole match is of interest.
Regex::Scan::Scan(const Regex& regex) : regex_(&regex), data_(pcre2_match_data_create(1, nullptr)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

void Regex::Scan::start(std::string_view text) {
  text_ = text;
  at_ = 0;
  matched_ = false;
}

bool Regex::Scan::next() {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  auto* data = static_cast<pcre2_match_data*>(data_.get());
  while (at_ <= text_.size()) {
    const Program& program = *regex_->program_;
    int found = pcre2_match(program.code, subject, text_.size(), at_, PCRE2_NO_UTF_CHECK, data,
                            program.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(program.code, subject, text_.size(), at_,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, program.context);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      at_ = text_.size() + 1;
      return false;
    }
    if (found < 0)
      throw InputError(regex_->field_ + " is a pattern that needs too many steps on this text");
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    const std::size_t start = offsets[0];
    const std::size_t end = offsets[1];
    if (start < (matched_ ? end_ : 0) || end < start)
      throw InputError(regex_->field_ + " is a pattern whose matches overlap");
    if (start == end && matched_ && end == end_) {
      at_ += at_ < text_.size() ? utf8_length(text_[at_]) : 1;
      continue;
    }
    at_ = end;
    start_ = start;
    end_ = end;
    matched_ = true;
    return true;
  }
  return false;
}

std::string Regex::replace(std::string_view text, std::string_view replacement,
                           std::size_t limit) const {
  std::string out;
  std::size_t done = 0;
  Scan scan(*this);
  scan.start(text);
  while (scan.next()) {
    out += text.substr(done, scan.match_start() - done);
    out += replacement;
    done = scan.match_end();
    if (out.size() > limit) throw InputError(field_ + " makes the text grow without bound");
  }
  return out += text.substr(done);
}

}  // namespace unpack::tokenizer
