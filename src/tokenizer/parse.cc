#include "tokenizer/parse.h"

#include <algorithm>
#include <limits>

#include "base/json_reader.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

using json = JsonValue;

// Vocabulary and merges are not kept as JSON values.
constexpr base::JsonLimits kLimits = {std::size_t{256} << 20, 100'000'000};

std::pair<std::string, std::string> split_merge(const std::string& merge,
                                                const std::string& where) {
  const std::size_t space = merge.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string::npos) {
    throw InputError(where + " must be two tokens with one space between them, not " +
                     in_quotes(merge));
  }
  return {merge.substr(0, space), merge.substr(space + 1)};
}

class Reader : public base::JsonEvents {
 public:
  Reader(const std::string& origin, bool root_is_vocab)
      : origin_(origin), root_is_vocab_(root_is_vocab) {}

  ParsedTokenizer take() { return std::move(parsed_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_float(double value, const std::string&) override { return scalar(value); }
  bool binary(json::binary_t&) override { return false; }
  bool number_integer(std::int64_t value) override {
    return place_ == Place::vocab ? vocab_id(value) : scalar(value);
  }
  bool number_unsigned(std::uint64_t value) override {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    return place_ == Place::vocab ? vocab_id(std::min(value, kMost)) : scalar(value);
  }

  bool string(std::string& value) override {
    if (place_ == Place::merges) {
      parsed_.merges.push_back(split_merge(value, origin_ + ": " + merge_name()));
    } else if (place_ == Place::pair) {
      if (pair_size_ == 2) fail(merge_name() + " must be two tokens");
      (pair_size_++ == 0 ? pair_.first : pair_.second) = std::move(value);
    } else {
      return scalar(std::move(value));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ != Place::plain) scalar(json::object());
    if ((root_is_vocab_ && stack_.empty()) || at_model("vocab")) {
      if (read_vocab_) fail("model.vocab stands there twice");
      read_vocab_ = true;
      place_ = Place::vocab;
      return true;
    }
    return open(json::object());
  }

  bool end_object() override {
    if (place_ != Place::vocab) return close();
    place_ = Place::plain;
    return root_is_vocab_ || scalar(nullptr);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::merges) {
      place_ = Place::pair;
      pair_size_ = 0;
      return true;
    }
    if (place_ != Place::plain) scalar(json::array());
    if (at_model("merges")) {
      if (read_merges_) fail("model.merges stands there twice");
      read_merges_ = true;
      place_ = Place::merges;
      return true;
    }
    return open(json::array());
  }

  bool end_array() override {
    if (place_ == Place::plain) return close();
    if (place_ == Place::pair) {
      if (pair_size_ != 2) fail(merge_name() + " must be two tokens");
      parsed_.merges.push_back(std::move(pair_));
      place_ = Place::merges;
      return true;
    }
    place_ = Place::plain;
    return scalar(nullptr);
  }

  bool key(std::string& name) override {
    if (place_ == Place::vocab) {
      token_ = std::move(name);
    } else {
      if (stack_.back().contains(name))
        fail("the key " + in_quotes(name) + " stands there twice in one object");
      keys_.back() = std::move(name);
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  enum class Place { plain, vocab, merges, pair };

  [[noreturn]] void fail(const std::string& what) const { throw InputError(origin_ + ": " + what); }
  std::string merge_name() const {
    return "model.merges[" + std::to_string(parsed_.merges.size()) + "]";
  }
  bool at_model(const char* field) const {
    return stack_.size() == 2 && keys_[0] == "model" && keys_[1] == field;
  }

  bool vocab_id(std::int64_t id) {
    parsed_.vocab.emplace_back(std::move(token_), id);
    return true;
  }

  bool scalar(json value) {
    if (place_ == Place::vocab)
      fail("the id of the vocabulary token " + in_quotes(token_) + " must be a whole number");
    if (place_ == Place::merges || place_ == Place::pair)
      fail(merge_name() + " must be a string or a list of two strings");
    if (stack_.empty()) {
      parsed_.rest = std::move(value);
    } else if (stack_.back().is_array()) {
      stack_.back().push_back(std::move(value));
    } else {
      stack_.back()[keys_.back()] = std::move(value);
    }
    return true;
  }

  bool open(json container) {
    stack_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    json done = std::move(stack_.back());
    stack_.pop_back();
    keys_.pop_back();
    return scalar(std::move(done));
  }

  const std::string& origin_;
  bool root_is_vocab_;
  bool read_vocab_ = false;
  bool read_merges_ = false;
  Place place_ = Place::plain;
  std::vector<json> stack_;
  std::vector<std::string> keys_;  // of the value being read, one per open container
  std::string token_;
  std::pair<std::string, std::string> pair_;
  int pair_size_ = 0;
  ParsedTokenizer parsed_;
};

}  // namespace

ParsedTokenizer parse_tokenizer_json(std::string_view text, const std::string& origin) {
  Reader reader(origin, false);
  base::scan_json(text, origin, reader, kLimits);
  return reader.take();
}

std::vector<std::pair<std::string, std::int64_t>> parse_vocab_json(std::string_view text,
                                                                   const std::string& origin) {
  Reader reader(origin, true);
  base::scan_json(text, origin, reader, kLimits);
  return reader.take().vocab;
}

Merges parse_merges_txt(std::string_view text, const std::string& origin) {
  Merges merges;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    merges.push_back(split_merge(std::string(line), origin + ": line " + std::to_string(number)));
  }
  return merges;
}

}  // namespace unpack::tokenizer
