#include <fmt/format.h>

#include <ctime>

#include "base/json_reader.h"
#include "chat/lexer.h"
#include "chat/runtime.h"
#include "chat/syntax.h"
#include "unpack/chat.h"
#include "unpack/json.h"

namespace unpack {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 20;

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  localtime_r(&now, &fields);
  return fields;
}

[[noreturn]] void fail(const std::string& origin, const std::string& what) {
  std::string line = fmt::format("{}: {}", origin, what);
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  throw InputError(line);
}

}  // namespace

struct ChatTemplate::Impl {
  std::string origin;
  chat::Body body;
};

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& origin) {
  if (source.size() > kLongest)
    fail(origin, fmt::format("a template of {} bytes is too long", source.size()));
  ChatTemplate result;
  try {
    result.impl_ = std::make_shared<const Impl>(Impl{origin, chat::parse_template(source)});
  } catch (const InputError& e) {
    fail(origin, e.what());
  }
  return result;
}

const std::string& ChatTemplate::origin() const { return impl_->origin; }

std::string ChatTemplate::render(std::string_view variables) const {
  const auto json = base::read_ordered_json(variables, impl_->origin);
  if (!json.is_object()) fail(impl_->origin, "its variables are no JSON object");
  try {
    const chat::Value values = chat::from_json(json);
    return chat::Runtime({}, local_time()).render(impl_->body, *values.map());
  } catch (const InputError& e) {
    fail(impl_->origin, e.what());
  }
}

}  // namespace unpack
