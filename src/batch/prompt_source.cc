#include "batch/prompt_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::batch {

namespace {

constexpr std::size_t kHead = 4096;
constexpr std::size_t kLargestStdin = std::size_t{1} << 30;
constexpr std::string_view kMark = "\xEF\xBB\xBF";
constexpr int kEnd = std::char_traits<char>::eof();

struct Magic {
  std::string_view bytes;
  const char* what;
};
constexpr Magic kMagics[] = {
    {"\x1F\x8B", "gzip data: decompress it first (zcat FILE | unpack batch - ...)"},
    {"PK\x03\x04", "a zip archive or a spreadsheet: save it as CSV or JSONL"},
    {"\x28\xB5\x2F\xFD", "zstd data: decompress it first (zstdcat FILE | unpack batch - ...)"},
    {"BZh", "bzip2 data: decompress it first (bzcat FILE | unpack batch - ...)"},
    {"\xFD"
     "7zXZ",
     "xz data: decompress it first (xzcat FILE | unpack batch - ...)"},
    {"PAR1", "a Parquet file: save it as CSV or JSONL"},
    {"\xFF\xFE", "UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"},
    {"\xFE\xFF", "UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"},
};

std::string shown(const std::string& file) { return file == "-" ? "stdin" : file; }

std::string read_all_stdin() {
  std::string text;
  char block[1 << 16];
  while (std::cin.read(block, sizeof block) || std::cin.gcount() > 0) {
    text.append(block, std::cin.gcount());
    if (text.size() > kLargestStdin)
      throw InputError("stdin has more than 1 GiB of prompts: save them to a file and name that");
  }
  return text;
}

}  // namespace

PromptSource::PromptSource(std::string file) : file_(std::move(file)) {
  if (file_ == "-") {
    stdin_text_ = read_all_stdin();
    head_ = stdin_text_.substr(0, kHead);
  } else {
    std::error_code ignored;
    if (std::filesystem::is_directory(file_, ignored))
      throw InputError(fmt::format("{} is a folder: name a file of prompts", file_));
    if (std::filesystem::is_fifo(file_, ignored) ||
        std::filesystem::is_character_file(file_, ignored))
      throw InputError(
          fmt::format("{} is a pipe or a device, and prompts are read more than once: name a file, "
                      "or give - and "
                      "pipe them in",
                      file_));
    errno = 0;
    std::ifstream in(file_, std::ios::binary);
    if (!in)
      throw InputError(fmt::format(
          "cannot read {}: {}", file_,
          errno != 0 ? std::strerror(errno) : "check the name and that it may be read"));
    head_.resize(kHead);
    in.read(head_.data(), kHead);
    head_.resize(std::max<std::streamsize>(0, in.gcount()));
  }
  if (head_.empty())
    throw InputError(fmt::format("{} is empty: give one prompt a line", shown(file_)));
  for (const Magic& magic : kMagics) {
    if (head_.starts_with(magic.bytes))
      throw InputError(fmt::format("{} is {}", shown(file_), magic.what));
  }
  if (const std::size_t at = head_.find('\0'); at != std::string::npos) {
    throw InputError(
        fmt::format("{} is no text (byte {} is 0): give JSONL, CSV, TSV or one prompt a line",
                    shown(file_), at));
  }
}

std::unique_ptr<std::istream> PromptSource::open() const {
  std::unique_ptr<std::istream> in;
  if (file_ == "-") {
    in = std::make_unique<std::istringstream>(stdin_text_);
  } else {
    in = std::make_unique<std::ifstream>(file_, std::ios::binary);
    if (!*in) throw InputError(fmt::format("cannot read {}", file_));
  }
  if (head_.starts_with(kMark)) in->ignore(kMark.size());
  return in;
}

PromptFormat recognise(const PromptSource& source, PromptFormat asked) {
  if (asked == PromptFormat::automatic) {
    std::string suffix = std::filesystem::path(source.file()).extension().string();
    std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    const std::size_t first = source.head().find_first_not_of(
        " \t\r\n", source.head().starts_with(kMark) ? kMark.size() : 0);
    const char begins = first == std::string::npos ? ' ' : source.head()[first];
    if (suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json") {
      asked = PromptFormat::jsonl;
    } else if (suffix == ".csv") {
      asked = PromptFormat::csv;
    } else if (suffix == ".tsv" || suffix == ".tab") {
      asked = PromptFormat::tsv;
    } else {
      asked = suffix != ".txt" && begins == '{' ? PromptFormat::jsonl : PromptFormat::text;
    }
    if (asked == PromptFormat::jsonl && begins == '[') {
      throw InputError(
          fmt::format("{} is one JSON array: give an object a line instead (jq -c '.[]' FILE)",
                      shown(source.file())));
    }
  }
  return asked;
}

void RecordCutter::skip_line() {
  for (int c = in_->get(); c != kEnd && c != '\n'; c = in_->get()) {
  }
  ++line_;
}

bool RecordCutter::next_line(RawRecord& record) {
  record.line = line_;
  record.cells.assign(1, {});
  record.problem.clear();
  std::string& text = record.cells[0];
  int c = in_->get();
  if (c == kEnd) return false;
  for (; c != kEnd && c != '\n'; c = in_->get()) {
    if (text.size() == kLongestRecord) {
      record.problem = fmt::format("longer than {} MiB", kLongestRecord >> 20);
      text.clear();
      skip_line();
      return true;
    }
    text += static_cast<char>(c);
  }
  ++line_;
  if (text.ends_with('\r')) text.pop_back();
  return true;
}

bool RecordCutter::next_row(RawRecord& record) {
  record.line = line_;
  record.cells.assign(1, {});
  record.problem.clear();
  std::size_t size = 0;
  bool quoted = false;  // inside quotes
  bool closed = false;  // behind a closing quote
  int c = in_->get();
  if (c == kEnd) return false;
  for (;; c = in_->get()) {
    std::string& cell = record.cells.back();
    if (c == kEnd || (!quoted && c == '\n')) break;
    if (++size > kLongestRecord) {
      record.problem = fmt::format("longer than {} MiB{}", kLongestRecord >> 20,
                                   quoted ? "; is a quote left open?" : "");
      skip_line();
      return true;
    }
    if (quoted) {
      line_ += c == '\n';
      if (c != '"') {
        cell += static_cast<char>(c);
      } else if (in_->peek() == '"') {
        cell += static_cast<char>(in_->get());
      } else {
        quoted = false;
        closed = true;
      }
    } else if (c == separator_) {
      record.cells.emplace_back();
      closed = false;
    } else if (c == '"' && cell.empty() && !closed) {
      quoted = true;
    } else if (c == '\r' && (in_->peek() == '\n' || in_->peek() == kEnd)) {
      continue;
    } else if (closed) {
      record.problem = "text behind a closing quote; write a quote inside quotes twice";
      skip_line();
      return true;
    } else {
      cell += static_cast<char>(c);
    }
  }
  ++line_;
  if (quoted) record.problem = "a quote is opened and never closed";
  return true;
}

bool RecordCutter::next(RawRecord& record) {
  for (;;) {
    if (!(separator_ == 0 ? next_line(record) : next_row(record))) {
      if (in_->bad())
        throw InputError(
            "reading the prompts failed: is the disk or the network file system in order?");
      return false;
    }
    const bool blank =
        record.problem.empty() &&
        std::all_of(record.cells.begin(), record.cells.end(), [](const std::string& cell) {
          return cell.find_first_not_of(" \t") == std::string::npos;
        });
    if (!blank) return true;
  }
}

std::string text_problem(const std::string& text) {
  if (const std::size_t at = text.find('\0'); at != std::string::npos)
    return fmt::format("not text: byte {} is 0", at);
  if (const std::size_t at = tokenizer::first_invalid_utf8(text); at != std::string::npos)
    return fmt::format("not UTF-8: byte {} is 0x{:02x}", at, static_cast<unsigned char>(text[at]));
  return {};
}

}  // namespace unpack::batch
