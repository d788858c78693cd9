// What this machine reaches, against its own measured peak.
#pragma once

#include <string>
#include <vector>

#include "unpack/model.h"

namespace unpack {

struct BenchOptions {
  std::string shape = "gpt2-small";  // a well-known shape or config.json text, with random weights; or a model's name or folder
  std::vector<int> tokens = {16};
  int repeat = 3;    // the median is reported
  int prompts = 20;  // of the batch comparison; 0: none
  std::size_t top_paths = 20;
  std::string dtype = "f32";  // of the random weights
  LoadOptions load;
};

struct BenchRow {
  std::string name;
  double seconds = 0;
  double gflop = 0;  // of the plan, 0 where none is counted
  double gbyte = 0;  // it must read
  double bound = 0;  // gflop / R + gbyte / M in seconds (forward: the larger of the two)
  std::string note;
};

struct BenchResult {
  ProgramInfo program;
  ModelInfo model;
  std::string kernels;
  double gemm_gflops = 0;      // R
  double read_gbytes = 0;      // M, per second
  double weights_mib = 0;      // in single precision
  double peak_memory_mib = 0;  // of the process, at the end
  double base_memory_mib = 0;  // of the process with the model loaded and packed, before the first prompt
  struct Length {
    int tokens = 0;
    double peak_memory_mib = 0;   // while this length was traced, without weight products
    double memory_bound_mib = 0;  // base memory, what the plan of this length holds at once, and a fixed allowance
    std::vector<BenchRow> rows;
  };
  std::vector<Length> lengths;
};

BenchResult run_bench(const BenchOptions& options, const RunContext& context = {});
std::string to_terminal(const BenchResult& result);
std::string to_json(const BenchResult& result);

}  // namespace unpack
