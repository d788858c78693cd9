// The table of `unpack bench` in parts, as they are printed one after the other while it runs.
#pragma once

#include <string>

#include "unpack/bench.h"

namespace unpack::bench {

std::string header_text(const BenchResult& r);
std::string length_text(const BenchResult::Length& length);
std::string plan_text(const BenchResult::Length& length);
std::string row_text(const BenchRow& row, bool first);
std::string after_rows_text(const BenchResult& r, const BenchResult::Length& length);
std::string tail_text(const BenchResult& r);

}  // namespace unpack::bench
