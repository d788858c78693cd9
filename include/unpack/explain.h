// A trace in words: one sentence or two for each of the nodes that matter most, made from the
// numbers alone.
#pragma once

#include <string>
#include <vector>

#include "unpack/prepared.h"

namespace unpack {

struct Sentence {
  Node node;
  double credit = 0;  // that reached the node
  std::string text;
};

// About the nodes with the largest |credit| of a trace (its root first), the strongest first.
// `question` is what the trace answered.
std::vector<Sentence> explain(const Prepared& prepared, const Question& question,
                              const TraceResult& trace, int count, const RunContext& context = {});

// About one head or MLP of the trace.
Sentence explain_node(const Prepared& prepared, const Question& question, const TraceResult& trace,
                      const Node& node, const RunContext& context = {});

// {"sentences": [{"node", "credit", "text"}]}
std::string to_json(const std::vector<Sentence>& sentences, const Writers& writers);

}  // namespace unpack
