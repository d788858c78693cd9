#include "model/json_text.h"

#include <fmt/format.h>

#include <unordered_set>

#include "unpack/error.h"

namespace unpack {

namespace {
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxShown = 160;
}  // namespace

std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShown)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  if (text.size() > kMaxShown) out += "...";
  return out + "'";
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out.append(out.empty() ? "" : ", ").append(text);
  return out;
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> texts;
  for (const std::int64_t number : numbers) texts.push_back(std::to_string(number));
  return joined(texts);
}

nlohmann::json parse_json(std::string_view text, const std::string& origin) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::unordered_set<std::string>>
      open;  // keys of the objects around the current place
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kMaxDepth)
      throw InputError(
          fmt::format("{}: JSON is nested more than {} levels deep", origin, kMaxDepth));
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key && !open.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw InputError(fmt::format("{}: key {} occurs twice in one JSON object", origin,
                                   shown(parsed.get_ref<const std::string&>())));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& e) {
    throw InputError(fmt::format("{}: not valid JSON (at byte {})", origin, e.byte));
  } catch (const nlohmann::json::exception&) {
    throw InputError(fmt::format("{}: not valid JSON (a number is out of range)", origin));
  }
}

}  // namespace unpack
