// The frame of a self-contained page: style for light and dark screens, nothing from the network.
#pragma once

#include <string>
#include <string_view>

namespace unpack::report {

struct Page {
  std::string title;  // plain text
  std::string body;   // markup
  std::string script;
};
std::string render_page(const Page& page);

// JSON that may stand inside a <script> element.
std::string script_json(std::string_view json);

}  // namespace unpack::report
