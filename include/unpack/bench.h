// What this machine reaches, against its own measured peak.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unpack/model.h"

namespace unpack {

struct BenchOptions {
  std::string shape = "gpt2-small";  // a well-known shape or config.json text, with random weights;
                                     // or a model's name or folder
  std::vector<int> tokens = {16};
  int repeat = 3;    // the median is reported
  int prompts = 20;  // of the batch comparison; 0: none
  std::size_t top_paths = 20;
  std::string preset = "paper";  // whose trace is timed; plans count that of "paper"
  std::string dtype = "f32";     // of the random weights
  int keep_layers = 0;       // also time the trace with so many layers' weights on the device, the
                             // others uploaded as needed; 0: not
  bool memory_only = false;  // what a trace takes of the device's memory, and no times
  LoadOptions load;
  std::function<void(const std::string&)>
      print;  // gets the text of the table as it comes about, so that a long run shows what it has
};

struct BenchRow {
  std::string name;
  double seconds = 0;
  double gflop = 0;  // of the plan, 0 where none is counted
  double gbyte = 0;  // it must read
  double bound = 0;  // gflop / R + gbyte / M in seconds (forward: the larger of the two)
  std::string note;
};

// How a device makes one kind of scores at a length, and what that takes by count.
struct BenchPlan {
  std::string what;  // "neurons"
  std::string way;   // "heads through products of weights, in two bf16 parts"
  double gflop = 0;
  double gbyte = 0;  // read and written, scores included
};

// A trace of a model that does not fit its device: uploads run beside the work where it takes less
// than both one after the other.
struct BenchStreamed {
  int layers_kept = 0;
  double seconds = 0;
  double resident_seconds = 0;  // of the same with all layers on the device
  double uploaded_gbytes = 0;   // during one trace
  double upload_seconds = 0;    // what so much takes with nothing else to do
};

struct BenchResult {
  ProgramInfo program;
  ModelInfo model;
  std::string kernels;
  double gemm_gflops = 0;      // R
  double read_gbytes = 0;      // M, per second
  double weights_mib = 0;      // in single precision
  double peak_memory_mib = 0;  // of the process, at the end
  double base_memory_mib =
      0;  // of the process with the model loaded and packed, before the first prompt
  double device_held_mib = 0;     // the most that was taken from a device with memory of its own
  double device_weights_mib = 0;  // what the model alone takes there
  struct Length {
    int tokens = 0;
    double peak_memory_mib = 0;  // while this length was traced, without weight products
    double memory_bound_mib =
        0;  // base memory, what the plan of this length holds at once, and a fixed allowance
    std::vector<BenchPlan> plan;  // of a device that plans by length
    std::vector<BenchRow> rows;
    double device_peak_mib =
        0;  // the most that the one-shot trace had in use there, weights included
    double device_counted_mib = 0;  // what was counted for it beforehand, without the weights
    std::optional<BenchStreamed> streamed;
  };
  std::vector<Length> lengths;
};

std::vector<std::string> known_shapes();  // names that BenchOptions::shape may have
BenchResult run_bench(const BenchOptions& options, const RunContext& context = {});
std::string to_terminal(const BenchResult& result);
std::string to_json(const BenchResult& result);

}  // namespace unpack
