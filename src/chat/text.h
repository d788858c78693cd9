// Text as Python's str has it: counted in characters, not in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unpack::chat {

std::vector<std::string_view> characters(std::string_view text);
std::int64_t length(std::string_view text);

enum class Side { left, right, both };
// Without white space, or without the characters of `chars`, at its ends.
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, Side side, std::string_view chars);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);         // str.title: a new word after every non-letter
std::string filter_title(std::string_view text);  // Jinja's filter: words split at blanks, -([{<

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most);  // < 0: all
std::vector<std::string> split(std::string_view text, std::string_view separator,
                               std::int64_t most);  // < 0: all
std::vector<std::string> split_from_right(std::string_view text, std::string_view separator,
                                          std::int64_t most);
std::vector<std::string> split_blanks(std::string_view text, std::int64_t most);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

bool all_of_class(std::string_view text, std::string_view what);  // "digit", "alpha", "space", ...
std::string python_quoted(std::string_view text);                 // repr of a str

}  // namespace unpack::chat
