// Any bytes as a file of prompts, in every format: records one after the other until its end.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "batch/prompt_source.h"
#include "one_line.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const char separator : {'\0', ',', '\t'}) {
    unpack::batch::RecordCutter cutter(std::make_unique<std::istringstream>(text), separator);
    unpack::batch::RawRecord record;
    std::size_t records = 0, line = 0;
    while (cutter.next(record)) {
      if (++records > size + 1 || record.line <= line) __builtin_trap();
      line = record.line;
      expect_one_line(record.problem);
      for (const std::string& cell : record.cells)
        expect_one_line(unpack::batch::text_problem(cell));
    }
  }
  return 0;
}
