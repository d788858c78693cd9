// Where models live: folders, the local Hugging Face cache, bundled models.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/files.h"
#include "base/installation.h"
#include "base/message.h"
#include "base/system.h"
#include "model/found.h"
#include "model/gguf_model.h"
#include "unpack/error.h"
#include "unpack/models.h"

namespace unpack {
namespace fs = std::filesystem;
namespace {

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Throws where the folder may not be looked into: that is not the same as having none.
bool has_config(const fs::path& folder) { return base::is_there(folder / "config.json"); }

bool has_gguf(const fs::path& folder) {
  std::error_code error;
  const std::vector<fs::path> files = base::folder_contents(folder, error);
  return std::any_of(files.begin(), files.end(),
                     [](const fs::path& file) { return file.extension() == ".gguf"; });
}

// Config and weights, or a GGUF file.
bool is_model(const fs::path& folder) { return has_config(folder) || has_gguf(folder); }

std::vector<fs::path> subfolders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::path& path : base::folder_contents(folder, error)) {
    if (is_folder(path)) found.push_back(path);
  }
  return found;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void add_unique(std::vector<fs::path>& paths, const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  if (std::find(paths.begin(), paths.end(), normal) == paths.end()) paths.push_back(normal);
}

// $UNPACK_MODELS, then where this installation keeps them.
std::vector<fs::path> bundle_folders() {
  std::vector<fs::path> folders;
  if (const std::string own = environment("UNPACK_MODELS"); !own.empty()) add_unique(folders, own);
  for (const fs::path& folder : base::resource_folders("models")) add_unique(folders, folder);
  return folders;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

// A relative path whose parts are all plain names: "main", "refs/pr/3".
bool is_plain_path(std::string_view path) {
  while (true) {
    const std::size_t slash = path.find('/');
    if (!is_plain_name(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

void add_refs(const fs::path& folder, const fs::path& refs, int depth,
              std::vector<std::string>& found) {
  constexpr int kDeepest = 8;
  std::error_code error;
  for (const fs::path& path : base::folder_contents(folder, error)) {
    const fs::file_status status = fs::symlink_status(path, error);
    if (fs::is_directory(status) && depth < kDeepest) add_refs(path, refs, depth + 1, found);
    if (fs::is_regular_file(path, error)) found.push_back(path.lexically_relative(refs).string());
  }
}

// Names of the refs of a cached model: "main", "step143000", "refs/pr/3".
std::vector<std::string> refs_of(const fs::path& repository) {
  std::vector<std::string> found;
  add_refs(repository / "refs", repository / "refs", 1, found);
  std::sort(found.begin(), found.end());
  return found;
}

// The snapshot that a ref, a commit hash or a beginning of one names; empty where there is none.
fs::path snapshot_of(const fs::path& repository, const std::string& revision) {
  const fs::path snapshots = repository / "snapshots";
  std::error_code error;
  if (is_plain_path(revision) && fs::is_regular_file(repository / "refs" / revision, error)) {
    const std::string commit = trimmed(model::read_text_file(repository / "refs" / revision));
    return is_plain_name(commit) && is_folder(snapshots / commit) ? snapshots / commit : fs::path();
  }
  if (is_plain_name(revision) && is_folder(snapshots / revision)) return snapshots / revision;
  constexpr std::size_t kShortestHash = 4;
  std::vector<fs::path> matching = subfolders(snapshots);
  if (revision == "main")
    return matching.size() == 1 ? matching.front()
                                : fs::path();  // downloaded by commit, without a ref
  if (revision.size() < kShortestHash) return {};
  std::erase_if(matching, [&](const fs::path& path) {
    return !path.filename().string().starts_with(revision);
  });
  if (matching.size() > 1) {
    throw InputError(fmt::format("{}: revision {} fits {} snapshots; give more of the commit hash",
                                 repository.string(), base::shown(revision), matching.size()));
  }
  return matching.empty() ? fs::path() : matching.front();
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

fs::path find_in_cache(const std::string& name) {
  const std::size_t at = name.find('@');
  const std::string repository_name = name.substr(0, at);
  const std::string revision = at == std::string::npos ? "main" : name.substr(at + 1);
  if (!is_plain_path(repository_name)) return {};
  for (const fs::path& cache : model_cache_folders()) {
    const fs::path repository = cache / ("models--" + replace_all(repository_name, "/", "--"));
    if (!is_folder(repository)) continue;
    fs::path snapshot = snapshot_of(repository, revision);
    if (snapshot.empty()) {
      std::vector<std::string> there = refs_of(repository);
      for (const fs::path& path : subfolders(repository / "snapshots"))
        there.push_back(path.filename().string());
      throw InputError(
          fmt::format("{}: no snapshot of revision {} in the cache (there: {}); download it with "
                      "`huggingface-cli download {} --revision {}`",
                      repository.string(), base::shown(revision),
                      there.empty() ? "none" : base::joined(there), repository_name, revision));
    }
    if (!is_model(snapshot)) throw InputError(model::explain_no_config(snapshot));
    if (fs::path file = model::find_gguf(snapshot); !file.empty()) return file;
    return snapshot;
  }
  return {};
}

std::vector<FoundModel> bundled_models() {
  std::vector<FoundModel> found;
  std::set<std::string> seen;
  for (const fs::path& folder : bundle_folders()) {
    for (const fs::path& model : subfolders(folder)) {
      if (model::may_have_config(model) && seen.insert(model.filename().string()).second)
        found.push_back({model.filename().string(), model, "bundled", "", ""});
    }
  }
  return found;
}

std::vector<FoundModel> cached_models() {
  std::vector<FoundModel> found;
  std::set<std::string> seen;
  constexpr std::string_view kPrefix = "models--";
  for (const fs::path& cache : model_cache_folders()) {
    for (const fs::path& repository : subfolders(cache)) {
      const std::string folder_name = repository.filename().string();
      if (!folder_name.starts_with(kPrefix)) continue;
      const std::string name = replace_all(folder_name.substr(kPrefix.size()), "--", "/");
      std::vector<std::string> revisions = refs_of(repository);
      if (revisions.empty()) revisions = {"main"};
      for (const std::string& revision : revisions) {
        const fs::path snapshot = snapshot_of(repository, revision);
        const std::string full = revision == "main" ? name : fmt::format("{}@{}", name, revision);
        if (!snapshot.empty() && (model::may_have_config(snapshot) || has_gguf(snapshot)) &&
            seen.insert(full).second)
          found.push_back({full, snapshot, "cache", "", ""});
      }
    }
  }
  return found;
}

// Every GGUF file of a folder; of one that is split the first part.
void add_gguf_files(const fs::path& folder, std::vector<FoundModel>& models) {
  std::error_code error;
  for (const fs::path& file : base::folder_contents(folder, error)) {
    const std::string name = file.filename().string();
    const std::size_t of = name.rfind("-of-");
    const bool later = of != std::string::npos && of >= 6 && name.substr(of - 5, 5) != "00001" &&
                       name.size() == of + 14;
    if (file.extension() == ".gguf" && !later)
      models.push_back({file.string(), file, "file", "", ""});
  }
}

}  // namespace

bool model::may_have_config(const fs::path& folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / "config.json", error));
}

std::vector<fs::path> model_cache_folders() {
  std::vector<fs::path> folders;
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) add_unique(folders, hub);
  if (const std::string home = environment("HF_HOME"); !home.empty())
    add_unique(folders, fs::path(home) / "hub");
  if (const std::string home = environment("HOME"); !home.empty())
    add_unique(folders, fs::path(home) / ".cache" / "huggingface" / "hub");
  return folders;
}

std::uint64_t free_memory() { return base::system_memory().available; }

fs::path locate_model(const std::string& name) {
  if (name.empty())
    throw InputError(
        "the model name is empty; give a folder, a name of the Hugging Face cache, or a bundled "
        "name such as pocket-gpt2");
  if (name.find('\0') != std::string::npos) throw InputError("the model name holds a NUL byte");
  constexpr std::size_t kLongestName = 4096;
  if (name.size() > kLongestName)
    throw InputError(fmt::format("the model name has {} bytes: no path is that long", name.size()));
  // A name that is no path at all is looked for further on.
  if (is_folder(name) && has_config(name)) return name;
  if (name.find('/') != std::string::npos && !is_folder(name)) (void)base::is_there(name);
  if (fs::path file = model::find_gguf(name); !file.empty()) return file;
  std::error_code error;
  if (fs::is_regular_file(name, error))
    throw InputError(fmt::format(
        "{}: is a file; give the folder that holds config.json and *.safetensors, or a *.gguf file",
        name));

  if (fs::path cached = find_in_cache(name); !cached.empty()) return cached;
  const std::vector<fs::path> bundles = bundle_folders();
  if (is_plain_name(name)) {
    for (const fs::path& folder : bundles) {
      if (has_config(folder / name)) return folder / name;
    }
  }
  if (is_folder(name)) throw InputError(model::explain_no_config(name));

  std::vector<FoundModel> known = bundled_models();
  std::vector<std::string> bundled;
  for (const FoundModel& model : known) bundled.push_back(model.name);
  for (FoundModel& model : cached_models()) known.push_back(std::move(model));
  const auto list = [](const std::vector<fs::path>& paths) {
    std::vector<std::string> texts;
    texts.reserve(paths.size());
    for (const fs::path& path : paths) texts.push_back(path.string());
    return base::joined(texts);
  };
  throw InputError(fmt::format(
      "model {} not found; looked for a folder{} of this name, in the Hugging Face cache "
      "({}), and among the bundled models in {} (there: {}){}",
      base::shown(name), name.ends_with(".gguf") ? " or file" : "", list(model_cache_folders()),
      list(bundles), bundled.empty() ? "none" : base::joined(bundled),
      model::nearest_names(name, known)));
}

std::vector<FoundModel> list_models(const std::vector<fs::path>& extra) {
  std::vector<FoundModel> models = bundled_models();
  for (FoundModel& model : cached_models()) models.push_back(std::move(model));
  for (const fs::path& path : extra) {
    std::error_code error;
    if (path.extension() == ".gguf" && fs::is_regular_file(path, error)) {
      models.push_back({path.string(), path, "file", "", ""});
      continue;
    }
    if (!is_folder(path)) throw InputError(fmt::format("{}: no such folder", path.string()));
    if (has_config(path)) {
      models.push_back({path.string(), path, "folder", "", ""});
      continue;
    }
    const std::size_t before = models.size();
    for (const fs::path& inner : subfolders(path)) {
      if (model::may_have_config(inner))
        models.push_back({inner.string(), inner, "folder", "", ""});
      add_gguf_files(inner, models);
    }
    add_gguf_files(path, models);
    if (models.size() == before) throw InputError(model::explain_no_config(path));
  }
  for (FoundModel& model : models) model::examine(model);
  return models;
}

}  // namespace unpack
