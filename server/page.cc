#include "page.h"

#include "unpack/error.h"

namespace unpack::server {

extern const unsigned char kPage[];
extern const unsigned long kPageSize;

std::string_view page_html() { return {reinterpret_cast<const char*>(kPage), kPageSize}; }

std::string page_policy() {
  // The build puts the hashes of the page's one script and one style there.
  constexpr std::string_view kStart = "http-equiv=\"Content-Security-Policy\" content=\"";
  const std::string_view page = page_html();
  const std::size_t start = page.find(kStart);
  const std::size_t end =
      start == std::string_view::npos ? start : page.find('"', start + kStart.size());
  if (end == std::string_view::npos)
    throw InternalError("the embedded page declares no Content-Security-Policy");
  return std::string(page.substr(start + kStart.size(), end - start - kStart.size())) +
         "; frame-ancestors 'none'";
}

}  // namespace unpack::server
