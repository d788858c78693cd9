// The bytes of a prompt file: opened, recognised, and cut into lines or CSV rows without ever
// holding more than one of them.
#pragma once

#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "unpack/batch.h"

namespace unpack::batch {

constexpr std::size_t kLongestRecord = std::size_t{4} << 20;  // bytes of a line, or of a row

// Opens the file (or stdin) at its beginning, behind a byte order mark. Throws InputError for what
// is no text: folders, archives, UTF-16, binary data.
class PromptSource {
 public:
  explicit PromptSource(std::string file);
  std::unique_ptr<std::istream> open() const;
  const std::string& file() const { return file_; }
  const std::string& head() const { return head_; }  // the first few thousand bytes

 private:
  std::string file_, head_, stdin_text_;
};

PromptFormat recognise(const PromptSource& source, PromptFormat asked);

struct RawRecord {
  std::size_t line = 0;  // where it begins, from 1
  std::vector<std::string> cells;
  std::string problem;
};

// Lines, or rows of `separator`-separated cells with RFC 4180 quotes (which may hold line ends).
// Blank ones are left out.
class RecordCutter {
 public:
  RecordCutter(std::unique_ptr<std::istream> in, char separator)
      : in_(std::move(in)), separator_(separator) {}  // separator 0: lines
  bool next(RawRecord& record);

 private:
  bool next_line(RawRecord& record);
  bool next_row(RawRecord& record);
  void skip_line();
  std::unique_ptr<std::istream> in_;
  char separator_;
  std::size_t line_ = 1;
};

// Why the text cannot be used (not UTF-8, a NUL byte), or nothing.
std::string text_problem(const std::string& text);

}  // namespace unpack::batch
