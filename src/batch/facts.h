// What of every line goes into summary.json: the same numbers, whether taken from a result or read
// back from its line.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "unpack/batch.h"
#include "unpack/result.h"

namespace unpack {

std::vector<double> facts_of(const TraceResult& result);
// Of a line of results.jsonl, by its text alone: reading it as JSON would take twenty times as
// long, and a merge or a resumed run reads them all.
std::vector<double> facts_of(std::string_view line);
std::size_t index_of(std::string_view line);

// Sums over the lines, taken in the order of the prompts so that a merge gives the same bits.
class Summary {
 public:
  void add(const std::vector<double>& facts);
  void add_error() { ++errors_; }
  std::size_t results() const { return results_; }
  std::size_t errors() const { return errors_; }
  bool empty() const { return traces_ == 0; }  // of traces, which have components
  nlohmann::ordered_json json(const std::vector<std::string>& writers) const;

 private:
  std::size_t results_ = 0, errors_ = 0, traces_ = 0;
  double tokens_ = 0, shortest_ = 0, longest_ = 0, probability_ = 0, first_ = 0, reached_ = 0;
  std::vector<double> credit_, absolute_;  // [C]
};

}  // namespace unpack
