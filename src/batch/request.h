// A prompt's line: its own fields (id, prompt, ids) and what it changes about the question.
#pragma once

#include <string>
#include <vector>

#include "unpack/ask.h"
#include "unpack/batch.h"
#include "unpack/json.h"

namespace unpack::batch {

struct BatchRequest {
  Asked asked;
  std::vector<Span> spans;             // groups of a trace
  std::optional<AnswerTokens> answer;  // in place of a trace
  MadePrompt prompt;
  OrderedJson id;  // as the line names itself
  std::vector<std::string> unknown;
};

bool known_field(const std::string& name);
// Nothing of the model's work is done yet, but all that can be wrong with the line is found. Throws
// InputError or UsageError.
BatchRequest read_request(const Model& model, const Asked& defaults, const std::string& fields);
// The id of a line, whatever else is wrong with it; null where it has none.
OrderedJson id_of(const std::string& fields);

}  // namespace unpack::batch
