// Any bytes as a line of results.jsonl: refused with one line, or values whose sizes fit together.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "batch/facts.h"
#include "one_line.h"
#include "report/line_log.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)unpack::report::is_sealed(text);
  try {
    const unpack::batch::LineValues line = unpack::batch::read_line(text, "results.jsonl", true);
    if (line.error) return 0;
    if (line.facts.at(0) != static_cast<double>(line.token_credit.size()) ||
        line.node_credit.size() != line.writers.size() * line.token_credit.size())
      __builtin_trap();
    for (const double x : line.facts) {
      if (std::isnan(x)) __builtin_trap();
    }
  } catch (const unpack::InputError& error) {
    expect_one_line(error.what());
  }
  return 0;
}
