// The built page, embedded by CMake from web/dist/index.html.
#pragma once

#include <string>
#include <string_view>

namespace unpack::server {

std::string_view page_html();
// The Content-Security-Policy that the page declares for itself, with what only a header can say.
std::string page_policy();

}  // namespace unpack::server
