// What edges and components may be ranked by, prompt by prompt, beside what patching them does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "circuit/ablation.h"
#include "experiments/session.h"

namespace unpack::circuit {

// Sizes, one an edge or one a writer; NaN: the measure does not know it.
using MeasureValues = std::map<std::string, std::vector<double>>;

struct PromptMeasures {
  MeasureValues edges;    // [edges of the table]
  MeasureValues writers;  // [C]
};

// In the order of the report.
std::vector<std::string> edge_measure_names();
std::vector<std::string> writer_measure_names();

PromptMeasures measure_prompt(const experiments::ModelSession& session, const EdgeTable& table,
                              const TaskPrompt& prompt, std::uint64_t seed);

}  // namespace unpack::circuit
