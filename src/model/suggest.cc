#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/message.h"
#include "model/found.h"

namespace unpack::model {
namespace fs = std::filesystem;
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// Insertions, deletions and replacements between two names, whatever their case.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t same = before + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      before = row[j];
      row[j] = std::min({same, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// GGUF files and model folders beside a path that is not there; a bare name's are those of the
// working folder.
std::vector<std::string> neighbours(const fs::path& path) {
  constexpr std::size_t kMost = 1000;
  std::vector<std::string> out;
  std::error_code error;
  const bool bare = !path.has_parent_path();
  for (const fs::path& other :
       base::folder_contents(bare ? fs::path(".") : path.parent_path(), error)) {
    if (other.extension() == ".gguf" || may_have_config(other))
      out.push_back((bare ? other.filename() : other).string());
    if (out.size() == kMost) break;
  }
  return out;
}

// A name that was not written to its end, or without its owner.
bool is_part(const std::string& name, const std::string& whole) {
  constexpr std::size_t kTooShort = 2;
  const auto same = [](char a, char b) { return lower(a) == lower(b); };
  return name.size() > kTooShort &&
         std::search(whole.begin(), whole.end(), name.begin(), name.end(), same) != whole.end();
}

}  // namespace

std::string nearest_names(const std::string& name, const std::vector<FoundModel>& known) {
  if (name.size() > 200) return {};
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const FoundModel& model : known) {
    const std::string last = model.name.substr(model.name.rfind('/') + 1);
    const std::size_t d = std::min(distance(name, model.name), distance(name, last));
    if (d <= std::max<std::size_t>(2, name.size() / 3) || is_part(name, model.name))
      near.emplace_back(d, model.name);
  }
  const std::string own = fs::path(name).filename().string();
  for (const std::string& other : neighbours(name)) {
    const std::string file = fs::path(other).filename().string();
    const std::size_t d = distance(own, file);
    if (d <= std::max<std::size_t>(2, own.size() / 3) || is_part(own, file))
      near.emplace_back(d, other);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(near.size(), 3); ++i)
    names.push_back(near[i].second);
  return names.empty() ? "" : fmt::format("; did you mean {}?", base::joined(names));
}

}  // namespace unpack::model
