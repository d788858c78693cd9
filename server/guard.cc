#include "guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>

namespace unpack::server {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "name:port", "name", "[::1]:port" -> the name; nothing when the header is malformed. The port may
// differ from ours: it does behind a forwarded one.
std::string name_of(std::string_view host) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    if (end == std::string_view::npos) return "";
    const std::string_view rest = host.substr(end + 1);
    if (!rest.empty() && !(rest.front() == ':' && is_port(rest.substr(1)))) return "";
    return std::string(host.substr(1, end - 1));
  }
  const std::size_t colon = host.find(':');
  if (colon == std::string_view::npos) return std::string(host);
  return is_port(host.substr(colon + 1)) ? std::string(host.substr(0, colon)) : "";
}

bool is_address(const std::string& name) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

}  // namespace

bool Guard::host_allowed(std::string_view host_header) const {
  const std::string name = lower(name_of(host_header));
  if (name.empty()) return false;
  return name == "localhost" || is_address(name) ||
         std::any_of(names_.begin(), names_.end(),
                     [&](const std::string& known) { return lower(known) == name; });
}

bool Guard::origin_allowed(std::string_view origin_header, std::string_view host_header) const {
  if (origin_header.empty()) return true;
  const std::string origin = lower(origin_header), host = lower(host_header);
  return origin == "http://" + host || origin == "https://" + host;
}

}  // namespace unpack::server
