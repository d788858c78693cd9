#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/json_reader.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/sources.h"

namespace unpack {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMost = 64U << 20;
constexpr std::size_t kMostFiles = 10'000;

std::string read_text(const fs::path& file) {
  std::string text = base::read_plain_file(file, kMost);
  if (const std::size_t bad = tokenizer::first_invalid_utf8(text); bad != std::string::npos)
    throw InputError(fmt::format("{}: byte {} is not valid UTF-8", file.string(), bad));
  return text;
}

void add(std::vector<SourceDocument>& documents, std::string name, const std::string& text,
         const std::string& file) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos)
    throw InputError(fmt::format("{}: document {} holds no text", file, name));
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  documents.push_back({std::move(name), text.substr(begin, end + 1 - begin)});
}

void add_json(std::vector<SourceDocument>& documents, const JsonValue& json,
              const std::string& file) {
  const std::string fallback = fmt::format("document {}", documents.size() + 1);
  if (json.is_string()) return add(documents, fallback, json.get<std::string>(), file);
  if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
    throw InputError(
        fmt::format("{}: {} is neither a text nor an object with \"text\"", file, fallback));
  const bool named = json.contains("name") && json["name"].is_string();
  add(documents, named ? json["name"].get<std::string>() : fallback,
      json["text"].get<std::string>(), file);
}

}  // namespace

std::vector<SourceDocument> parse_documents(std::string_view json, const std::string& origin) {
  JsonValue list;
  try {
    list = base::read_json(json, origin);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}; it takes a JSON list of documents", error.what()));
  }
  if (!list.is_array() || list.empty())
    throw InputError(fmt::format("{}: is no JSON list of documents", origin));
  if (list.size() > kMostFiles)
    throw InputError(fmt::format("{}: holds more than {} documents", origin, kMostFiles));
  std::vector<SourceDocument> documents;
  for (const auto& entry : list) add_json(documents, entry, origin);
  return documents;
}

std::vector<SourceDocument> read_documents(const fs::path& path) {
  std::vector<SourceDocument> documents;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    std::vector<fs::path> files;
    for (const fs::path& file : base::folder_contents(path, error)) {
      const std::string name = file.filename().string();
      if (fs::is_regular_file(file, error) && !name.starts_with('.')) files.push_back(file);
      if (files.size() > kMostFiles)
        throw InputError(fmt::format("{}: holds more than {} files", path.string(), kMostFiles));
    }
    for (const fs::path& file : files)
      add(documents, file.filename().string(), read_text(file), file.string());
    if (documents.empty())
      throw InputError(fmt::format("{}: no files in this folder", path.string()));
    return documents;
  }
  if (!fs::exists(path, error))
    throw InputError(fmt::format("{}: no such file or folder", path.string()));
  const std::string text = read_text(path);
  const std::string ending = path.extension().string();
  if (ending == ".json") {
    documents = parse_documents(text, path.string());
  } else if (ending == ".jsonl") {
    std::size_t begin = 0;
    for (std::size_t line = 1; begin < text.size(); ++line) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string one = text.substr(begin, end - begin);
      begin = end + 1;
      if (one.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto json =
          read_json(one, fmt::format("{}: line {}", path.string(), line), base::kSmallJson);
      add_json(documents, json, path.string());
    }
    if (documents.empty()) throw InputError(fmt::format("{}: holds no documents", path.string()));
  } else {
    add(documents, path.filename().string(), text, path.string());
  }
  return documents;
}

}  // namespace unpack
