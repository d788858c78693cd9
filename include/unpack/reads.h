// What a head or an MLP reads, without following its credit any further.
#pragma once

#include <string>
#include <vector>

#include "unpack/prepared.h"

namespace unpack {

// Of credit 1 put on question.root: what it sends to every node by each branch (incoming), and how
// it is shared out over its sources or neurons (entries). A trace's other members stay empty, and
// with direction `read` nothing below the root is computed.
TraceResult node_reads(const Prepared& prepared, const Question& question,
                       const RunContext& context = {});

// {"node", "entries", "incoming": {branch: [{"node", "credit"}, ...]}}: so many a branch, the
// strongest first; with "pattern", a head's attention at the node, where it is given.
std::string reads_to_json(const TraceResult& reads, std::size_t most,
                          const std::vector<double>& pattern = {});

}  // namespace unpack
