// The experiment `edges`: records, then a summary of each model; tables and plots of all of them.
#pragma once

#include <string>
#include <vector>

#include "experiments/session.h"

namespace unpack::circuit {

experiments::Json run_edges(experiments::ModelSession& session);
std::string report_edges(const experiments::Json& summaries,
                         std::vector<experiments::ReportFile>& files);

}  // namespace unpack::circuit
