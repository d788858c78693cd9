// Split patterns of tokenizer files, which are written for Oniguruma, on PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace unpack::tokenizer {

class Regex {
 public:
  enum class Kind { pattern, literal };

  // `field` ("tokenizer.json: pre_tokenizer.pattern") opens the message of the InputError for a
  // pattern that does not compile.
  Regex(std::string_view pattern, Kind kind, const std::string& field);

  // Finds the matches from left to right in valid UTF-8 text. An empty match directly after the
  // last one is passed over. One scan serves one thread; the Regex itself may be shared.
  class Scan {
   public:
    explicit Scan(const Regex& regex);
    void start(std::string_view text);
    bool next();  // false at the end; throws InputError where the pattern needs too many steps
    std::size_t match_start() const { return start_; }
    std::size_t match_end() const { return end_; }

   private:
    struct Free {
      void operator()(void* data) const;
    };
    const Regex* regex_;
    std::unique_ptr<void, Free> data_;
    std::string_view text_;
    std::size_t at_ = 0;
    std::size_t start_ = 0;
    std::size_t end_ = 0;
    bool matched_ = false;
  };

  // The text with every match replaced. Throws InputError where the result would be longer than
  // `limit`.
  std::string replace(std::string_view text, std::string_view replacement, std::size_t limit) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
  std::string field_;
};

}  // namespace unpack::tokenizer
