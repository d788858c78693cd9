#include "base/json_reader.h"

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/message.h"
#include "unpack/error.h"

namespace unpack::base {
namespace {

[[noreturn]] void fail(const std::string& origin, const std::string& what) {
  throw InputError(fmt::format("{}: {}", origin, what));
}

// Counts what goes through and stops it at the limits.
class Guard final : public JsonEvents {
 public:
  Guard(const std::string& origin, const JsonLimits& limits, JsonEvents& inner)
      : origin_(origin), limits_(limits), inner_(inner) {}

  bool null() override { return one() && inner_.null(); }
  bool boolean(bool x) override { return one() && inner_.boolean(x); }
  bool number_integer(std::int64_t x) override { return one() && inner_.number_integer(x); }
  bool number_unsigned(std::uint64_t x) override { return one() && inner_.number_unsigned(x); }
  bool number_float(double x, const std::string& text) override {
    return one() && inner_.number_float(x, text);
  }
  bool string(std::string& x) override { return one() && inner_.string(x); }
  bool binary(JsonValue::binary_t&) override { return false; }
  bool start_object(std::size_t n) override { return deeper() && inner_.start_object(n); }
  bool start_array(std::size_t n) override { return deeper() && inner_.start_array(n); }
  bool end_object() override { return --depth_, inner_.end_object(); }
  bool end_array() override { return --depth_, inner_.end_array(); }
  bool key(std::string& name) override { return inner_.key(name); }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) fail(origin_, "not valid JSON (a number is out of range)");
    fail(origin_, fmt::format("not valid JSON (at byte {})", byte));
  }

 private:
  bool one() {
    if (++values_ > limits_.values)
      fail(origin_, fmt::format("JSON with more than {} values", limits_.values));
    return true;
  }
  bool deeper() {
    if (++depth_ > kJsonDepth)
      fail(origin_, fmt::format("JSON is nested more than {} levels deep", kJsonDepth));
    return one();
  }

  const std::string& origin_;
  const JsonLimits limits_;
  JsonEvents& inner_;
  std::size_t depth_ = 0, values_ = 0;
};

template <class Json>
class Builder final : public JsonEvents {
 public:
  explicit Builder(const std::string& origin) : origin_(origin) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool x) override { return put(x); }
  bool number_integer(std::int64_t x) override { return put(x); }
  bool number_unsigned(std::uint64_t x) override { return put(x); }
  bool number_float(double x, const std::string&) override { return put(x); }
  bool string(std::string& x) override { return put(std::move(x)); }
  bool binary(JsonValue::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Level& level = levels_.back();
    if (!level.seen.insert(name).second)
      fail(origin_, fmt::format("key {} occurs twice in one JSON object", shown(name)));
    level.key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;  // the guard has thrown
  }

 private:
  struct Level {
    Json value;
    std::string key;
    std::set<std::string> seen;
  };

  bool open(Json container) {
    levels_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json done = std::move(levels_.back().value);
    levels_.pop_back();
    return put(std::move(done));
  }
  bool put(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else if constexpr (std::is_same_v<Json, JsonValue>) {
      level.value.template get_ptr<typename Json::object_t*>()->emplace(std::move(level.key),
                                                                        std::move(value));
    } else {
      // Its own emplace looks through all keys, which would make a large object quadratic.
      static_cast<typename Json::object_t::Container&>(
          *level.value.template get_ptr<typename Json::object_t*>())
          .emplace_back(std::move(level.key), std::move(value));
    }
    return true;
  }

  const std::string& origin_;
  std::vector<Level> levels_;
  Json root_;
};

}  // namespace

void scan_json(std::string_view text, const std::string& origin, JsonEvents& events,
               const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    fail(origin, fmt::format("{} bytes of JSON, more than the {} that are read", text.size(),
                             limits.bytes));
  // The parser takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail(origin, fmt::format("not valid JSON (byte {} is 0)", nul));
  Guard guard(origin, limits, events);
  if (!JsonValue::sax_parse(text.begin(), text.end(), &guard)) fail(origin, "not valid JSON");
}

JsonValue read_json(std::string_view text, const std::string& origin, const JsonLimits& limits) {
  Builder<JsonValue> builder(origin);
  scan_json(text, origin, builder, limits);
  return builder.take();
}

OrderedJson read_ordered_json(std::string_view text, const std::string& origin,
                              const JsonLimits& limits) {
  Builder<OrderedJson> builder(origin);
  scan_json(text, origin, builder, limits);
  return builder.take();
}

}  // namespace unpack::base
