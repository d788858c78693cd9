// Every method's answer to one question about a compiled model: a credit for each edge, and for
// each token.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/compiled/plain_model.h"
#include "unpack/model.h"
#include "unpack/prepared.h"

namespace unpack::experiments::compiled {

struct Answer {
  std::vector<double> edges;   // in the order of Program::edges(), over the first absolute credit
  std::vector<double> tokens;  // [S]; empty where a method says nothing about tokens
};

// Names in the order of the report.
struct MethodName {
  std::string name, what;
  bool ours = false;
};
std::vector<MethodName> method_names();
Options method_options(const std::string& name);  // of one of ours

std::map<std::string, Answer> ask_all(const Program& program, const Model& model,
                                      const PlainModel& plain, const Prompt& prompt,
                                      const RunContext& context);

}  // namespace unpack::experiments::compiled
