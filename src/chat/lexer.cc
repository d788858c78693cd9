#include "chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat/text.h"
#include "tokenizer/utf8.h"

namespace unpack::chat {
namespace {

constexpr std::array<std::string_view, 28> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "@"};

bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80U) != 0;
}

// Line ends of other systems become \n, and the last one goes.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) next_piece();
    emit(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  void emit(TokenKind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line_});
  }

  void advance(std::size_t n) {
    line_ += std::count(source_.begin() + at_, source_.begin() + (at_ + n), '\n');
    if (n > 0) line_starting_ = source_[at_ + n - 1] == '\n';
    at_ += n;
  }

  bool follows(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }

  void skip_blanks() {
    while (at_ < source_.size() && blank(source_[at_])) advance(1);
  }

  // The text up to `tag`, cut as the tag's sign and the options want.
  void emit_text(std::size_t tag, bool variable) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign == '-') {
      text = strip(text, Side::right);
    } else if (sign != '+' && !variable) {
      const std::size_t line_start = text.rfind('\n') + 1;
      const std::string_view rest = text.substr(line_start);
      if ((line_start > 0 || line_starting_) && strip(rest, Side::both).empty())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) emit(TokenKind::text, std::string(text));
    advance(tag - at_);
  }

  void next_piece() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        emit(TokenKind::text, source_.substr(at_));
        advance(source_.size() - at_);
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    emit_text(tag, kind == '{');
    advance(2);
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) advance(1);
    if (kind == '#') {
      skip_comment();
    } else if (kind == '%' && is_raw()) {
      raw();
    } else {
      inside(kind == '{');
    }
  }

  void skip_comment() {
    const int begin = line_;
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(begin, "a comment {# is not closed");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_block(sign);
  }

  void after_block(char sign) {
    if (sign == '-') {
      skip_all_space();
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      advance(1);
    }
  }

  void skip_all_space() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    advance(rest.size() - strip(rest, Side::left).size());
  }

  // Whether `raw` and the end of the tag follow; what follows is left where it is.
  bool is_raw() const {
    std::size_t i = at_;
    while (i < source_.size() && blank(source_[i])) ++i;
    if (source_.compare(i, 3, "raw") != 0) return false;
    i += 3;
    while (i < source_.size() && blank(source_[i])) ++i;
    return source_.compare(i, 2, "%}") == 0 || source_.compare(i, 3, "-%}") == 0;
  }

  void raw() {
    const int begin = line_;
    advance(source_.find("%}", at_) - at_);
    const bool cut = source_[at_ - 1] == '-';
    advance(2);
    if (cut) skip_all_space();
    for (std::size_t tag = at_;; ++tag) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail_at(begin, "{% raw %} has no {% endraw %}");
      std::size_t i = tag + 2;
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
      while (i < source_.size() && blank(source_[i])) ++i;
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      while (i < source_.size() && blank(source_[i])) ++i;
      char sign = ' ';
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
      if (source_.compare(i, 2, "%}") != 0) continue;
      emit_text(tag, false);
      advance(i + 2 - at_);
      after_block(sign);
      return;
    }
  }

  // Tokens up to the end of the tag.
  void inside(bool variable) {
    const int begin = line_;
    emit(variable ? TokenKind::variable_begin : TokenKind::block_begin, "");
    const std::string_view close = variable ? "}}" : "%}";
    std::vector<char> open;  // brackets
    for (;;) {
      skip_blanks();
      if (at_ >= source_.size())
        fail_at(begin, fmt::format("a tag {} is not closed", variable ? "{{" : "{%"));
      if (open.empty()) {
        const char sign = source_[at_];
        const bool signed_end = (sign == '-' || (sign == '+' && !variable)) &&
                                std::string_view(source_).substr(at_ + 1).starts_with(close);
        if (signed_end || follows(close)) {
          advance(signed_end ? 3 : 2);
          emit(variable ? TokenKind::variable_end : TokenKind::block_end, "");
          if (variable) {
            if (signed_end) skip_all_space();
          } else {
            after_block(signed_end ? sign : ' ');
          }
          return;
        }
      }
      token(open);
    }
  }

  void token(std::vector<char>& open) {
    const char c = source_[at_];
    if (digit(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    if (starts_name(c)) {
      std::size_t n = 1;
      while (at_ + n < source_.size() && (starts_name(source_[at_ + n]) || digit(source_[at_ + n])))
        ++n;
      emit(TokenKind::name, source_.substr(at_, n));
      return advance(n);
    }
    for (const std::string_view op : kOperators) {
      if (!follows(op) || op == "!" || op == "@" || op == ";") continue;
      if (op == "(" || op == "[" || op == "{") open.push_back(op[0]);
      if (op == ")" || op == "]" || op == "}") {
        const char wanted = op == ")" ? '(' : op == "]" ? '[' : '{';
        if (open.empty() || open.back() != wanted)
          fail_at(line_, fmt::format("unexpected '{}'", op));
        open.pop_back();
      }
      emit(TokenKind::op, std::string(op));
      return advance(op.size());
    }
    const std::size_t n = std::min(tokenizer::utf8_length(c), source_.size() - at_);
    fail_at(line_,
            fmt::format("unexpected character {}", tokenizer::in_quotes(source_.substr(at_, n))));
  }

  std::string digits(std::string_view allowed) {
    std::string out;
    while (at_ < source_.size() &&
           (allowed.find(source_[at_]) != std::string_view::npos || source_[at_] == '_')) {
      if (source_[at_] != '_') out += source_[at_];
      advance(1);
    }
    return out;
  }

  void number() {
    constexpr std::string_view kDecimal = "0123456789";
    const char second = at_ + 1 < source_.size() ? source_[at_ + 1] : ' ';
    if (source_[at_] == '0' && std::string_view("xXoObB").find(second) != std::string_view::npos) {
      fail_at(line_, "numbers in other bases than ten are not supported");
    }
    std::string value = digits(kDecimal);
    bool real = false;
    if (at_ + 1 < source_.size() && source_[at_] == '.' && digit(source_[at_ + 1])) {
      real = true;
      advance(1);
      value += '.' + digits(kDecimal);
    }
    if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
      std::size_t n = 1;
      if (at_ + n < source_.size() && (source_[at_ + n] == '+' || source_[at_ + n] == '-')) ++n;
      if (at_ + n < source_.size() && digit(source_[at_ + n])) {
        real = true;
        value += source_.substr(at_, n);
        advance(n);
        value += digits(kDecimal);
      }
    }
    emit(real ? TokenKind::real : TokenKind::integer, value);
  }

  void string(char quote) {
    const int begin = line_;
    std::string value;
    advance(1);
    for (;;) {
      if (at_ >= source_.size()) fail_at(begin, "a string is not closed");
      const char c = source_[at_];
      advance(1);
      if (c == quote) break;
      if (c != '\\') {
        value += c;
        continue;
      }
      if (at_ >= source_.size()) fail_at(begin, "a string is not closed");
      escape(value);
    }
    tokens_.push_back({TokenKind::string, std::move(value), begin});
  }

  // As Python reads the escapes of a str.
  void escape(std::string& value) {
    const char c = source_[at_];
    advance(1);
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t i = kFrom.find(c); i != std::string_view::npos) {
      value += kTo[i];
    } else if (c == '\n') {
      return;  // a line that goes on
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code_point(value, 16, c == 'x' ? 2 : c == 'u' ? 4 : 8, true, "0123456789abcdefABCDEF");
    } else if (c >= '0' && c <= '7') {
      --at_;
      code_point(value, 8, 3, false, "01234567");
    } else if (c == 'N') {
      fail_at(line_, "characters by name (\\N) are not supported");
    } else {
      value += '\\';
      value += c;
    }
  }

  void code_point(std::string& value, int base, std::size_t most, bool all,
                  std::string_view allowed) {
    std::string number;
    while (number.size() < most && at_ < source_.size() &&
           allowed.find(source_[at_]) != std::string_view::npos) {
      number += source_[at_];
      advance(1);
    }
    if (number.empty() || (all && number.size() != most))
      fail_at(line_, "a bad escape in a string");
    const char32_t code = std::stoul(number, nullptr, base);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail_at(line_, "a string names a character that does not exist");
    value += tokenizer::to_utf8(code);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(int line, const std::string& what) {
  throw TemplateError(fmt::format("line {}: {}", line, what));
}

std::vector<Token> tokenize_template(std::string_view source) {
  if (const std::size_t bad = tokenizer::first_invalid_utf8(source); bad != std::string_view::npos)
    throw TemplateError(fmt::format("byte {} is not valid UTF-8", bad));
  return Lexer(with_plain_line_ends(source)).run();
}

}  // namespace unpack::chat
