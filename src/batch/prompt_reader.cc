#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checksum.h"
#include "batch/prompt_source.h"
#include "batch/request.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack {

using Json = OrderedJson;

PromptFormat parse_prompt_format(const std::string& name) {
  constexpr std::pair<const char*, PromptFormat> kFormats[] = {{"auto", PromptFormat::automatic},
                                                               {"text", PromptFormat::text},
                                                               {"jsonl", PromptFormat::jsonl},
                                                               {"csv", PromptFormat::csv},
                                                               {"tsv", PromptFormat::tsv}};
  for (const auto& [known, format] : kFormats) {
    if (name == known) return format;
  }
  throw UsageError(fmt::format("format takes auto, text, jsonl, csv or tsv, not '{}'", name));
}

struct PromptReader::Impl {
  batch::PromptSource source;
  PromptFormat format;
  std::unique_ptr<batch::RecordCutter> cutter;
  std::vector<std::string> header, ignored;
  std::string checksum;
  std::size_t count = 0;
  std::size_t index = 0;

  Impl(const std::string& file, PromptFormat asked)
      : source(file), format(batch::recognise(source, asked)) {
    base::Hash64 hash;
    const std::unique_ptr<std::istream> in = source.open();
    std::string block(1 << 16, '\0');
    while (in->read(block.data(), block.size()) || in->gcount() > 0) {
      hash.add(std::string_view(block).substr(0, in->gcount()));
    }
    checksum = hash.text();
    begin();
    batch::RawRecord record;
    while (cutter->next(record)) ++count;
    if (count == 0)
      throw InputError(
          fmt::format("{} has no prompts{}", name(), table() ? ": a header and no rows" : ""));
    begin();
  }

  bool table() const { return format == PromptFormat::csv || format == PromptFormat::tsv; }
  std::string name() const { return source.file() == "-" ? "stdin" : source.file(); }

  void begin() {
    index = 0;
    cutter =
        std::make_unique<batch::RecordCutter>(source.open(), format == PromptFormat::csv   ? ','
                                                             : format == PromptFormat::tsv ? '\t'
                                                                                           : '\0');
    if (table()) read_header();
  }

  void read_header() {
    batch::RawRecord record;
    if (!cutter->next(record)) throw InputError(fmt::format("{} has no prompts", name()));
    header = record.cells;
    ignored.clear();
    for (std::string& column : header) {
      const std::size_t first = column.find_first_not_of(" \t"),
                        last = column.find_last_not_of(" \t");
      column = first == std::string::npos ? "" : column.substr(first, last - first + 1);
      std::transform(column.begin(), column.end(), column.begin(), [](unsigned char c) {
        return c == '-' ? '_' : static_cast<char>(std::tolower(c));
      });
      if (!batch::known_field(column)) ignored.push_back(column);
    }
    const auto has = [&](const char* column) {
      return std::count(header.begin(), header.end(), column);
    };
    if (!record.problem.empty() ||
        !batch::text_problem(fmt::format("{}", fmt::join(header, ","))).empty() ||
        has("prompt") + has("ids") + has("messages") == 0) {
      throw InputError(
          fmt::format("{}: the first line must name the columns, prompt or ids among them "
                      "(format text: one prompt a line)",
                      name()));
    }
    for (const std::string& column : header) {
      if (has(column.c_str()) > 1 && batch::known_field(column))
        throw InputError(fmt::format("{}: two columns are called {}", name(), column));
    }
  }

  bool next(PromptRecord& out) {
    batch::RawRecord record;
    if (!cutter->next(record)) return false;
    out = {index++, record.line, {}, record.problem};
    for (const std::string& cell : record.cells) {
      if (out.problem.empty()) out.problem = batch::text_problem(cell);
    }
    if (table() && out.problem.empty() && record.cells.size() != header.size()) {
      out.problem = fmt::format("{} cells, but the header names {} columns", record.cells.size(),
                                header.size());
    }
    if (!out.problem.empty()) return true;
    if (format == PromptFormat::jsonl) {
      out.fields = std::move(record.cells[0]);
    } else if (format == PromptFormat::text) {
      out.fields = Json({{"prompt", record.cells[0]}}).dump();
    } else {
      Json fields = Json::object();
      for (std::size_t i = 0; i < header.size(); ++i) {
        if (batch::known_field(header[i]) && !record.cells[i].empty())
          fields[header[i]] = record.cells[i];
      }
      out.fields = fields.dump();
    }
    return true;
  }
};

PromptReader::PromptReader(const std::string& file, PromptFormat format)
    : impl_(std::make_unique<Impl>(file, format)) {}
PromptReader::~PromptReader() = default;
PromptReader::PromptReader(PromptReader&&) noexcept = default;
PromptReader& PromptReader::operator=(PromptReader&&) noexcept = default;

bool PromptReader::next(PromptRecord& record) { return impl_->next(record); }
void PromptReader::rewind() { impl_->begin(); }
std::size_t PromptReader::count() const { return impl_->count; }
const std::string& PromptReader::checksum() const { return impl_->checksum; }
std::string PromptReader::name() const {
  return impl_->source.file() == "-"
             ? "-"
             : std::filesystem::path(impl_->source.file()).filename().string();
}
std::vector<std::string> PromptReader::ignored_columns() const { return impl_->ignored; }

}  // namespace unpack
