// JSON for those who put it into something larger.
#pragma once

#include <string>

#include "unpack/result.h"

namespace unpack::report {

// The members of to_json(result) that differ from prompt to prompt, on one line:
// `"tokens":[...],...`, without braces. What is the same for a whole run (version, program, model)
// is left out.
std::string json_members(const TraceResult& result);
std::string model_members(const ModelInfo& model);  // the object of "model"

}  // namespace unpack::report
