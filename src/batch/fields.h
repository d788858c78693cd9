// The fields of a prompt's line: which there are, and what they change about the question.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unpack/batch.h"

namespace unpack {

struct BatchRequest {
  BatchQuestion asked;
  std::vector<TokenId> ids;
  nlohmann::ordered_json id;  // as the line names itself
  std::vector<std::string> unknown;
};

bool known_field(const std::string& name);
// Nothing of the model's work is done yet, but all that can be wrong with the line is found. Throws
// InputError or UsageError.
BatchRequest read_request(const Model& model, const BatchQuestion& defaults,
                          const std::string& fields);

}  // namespace unpack
