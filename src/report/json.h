// JSON values for those who put them into something larger.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "unpack/explain.h"
#include "unpack/result.h"
#include "unpack/spans.h"

namespace unpack::report {

// The members of to_json(result) that differ from prompt to prompt. What is the same for a whole
// run (version, program, model) is left out.
nlohmann::ordered_json trace_json(const TraceResult& result);
nlohmann::ordered_json model_json(const ModelInfo& model);
nlohmann::ordered_json options_json(const Options& options);
nlohmann::ordered_json sentences_json(const std::vector<Sentence>& sentences,
                                      const Writers& writers);
nlohmann::ordered_json groups_json(const std::vector<SpanCredit>& groups);

// On one line; what is no UTF-8 is replaced.
std::string compact(const nlohmann::ordered_json& json);

}  // namespace unpack::report
