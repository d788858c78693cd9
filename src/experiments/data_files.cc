#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

#include "base/files.h"
#include "base/installation.h"
#include "experiments/text_data.h"
#include "unpack/error.h"

namespace unpack {

namespace {

// Length of the UTF-8 sequence at `at`, 0 where it is malformed.
std::size_t sequence_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(at);
  const std::size_t n = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : (first & 0xF0) == 0xE0        ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  return n;
}

bool valid_utf8(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = sequence_length(text, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

}  // namespace

experiments::TextFile experiments::read_text(const std::filesystem::path& file, bool stop) {
  constexpr std::size_t kLargest = std::size_t{1} << 30;
  std::istringstream in(base::read_plain_file(file, kLargest));
  experiments::TextFile out;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    if (!valid_utf8(line)) {
      const std::string problem = fmt::format("{}, line {}: not UTF-8", file.string(), number);
      if (stop)
        throw InputError(problem + "; mend the line, or let it be skipped (not stop_at_bad_line)");
      out.problems.push_back(problem + ", skipped");
      continue;
    }
    out.lines.push_back({number, line});
  }
  if (out.lines.empty()) throw InputError(fmt::format("{} has no usable line", file.string()));
  return out;
}

std::filesystem::path experiments::data_file(const std::string& name) {
  std::vector<std::filesystem::path> folders;
  if (const char* given = std::getenv("UNPACK_DATA"); given && *given) folders.emplace_back(given);
  for (const auto& folder : base::resource_folders("data")) folders.push_back(folder);
  std::string looked;
  for (const auto& folder : folders) {
    if (base::is_there(folder / name)) return folder / name;
    looked += (looked.empty() ? "" : ", ") + folder.string();
  }
  throw InputError(
      fmt::format("{} is not in {}: set UNPACK_DATA to the program's data folder", name, looked));
}

std::vector<std::string> experiments::single_token_words(const Model& model,
                                                         const std::string& list) {
  std::vector<std::string> out;
  for (const experiments::TextLine& line : read_text(experiments::data_file(list), true).lines) {
    if (model.tokenizer().encode(" " + line.text).size() == 1) out.push_back(line.text);
  }
  return out;
}

}  // namespace unpack
