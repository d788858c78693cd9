// The experiment on sources: runner.cc has it in its table.
#pragma once

#include "experiments/session.h"

namespace unpack::experiments {

Json run_sources(ModelSession& session);
std::string report_sources(const Json& summaries, std::vector<ReportFile>& files);

}  // namespace unpack::experiments
