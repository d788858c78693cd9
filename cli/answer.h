// Answers of several tokens, and groups of positions: of a trace, and of every prompt of a batch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"

namespace unpack::cli {

struct AnswerArguments {
  std::optional<std::string> answer, versus_answer, group_by;
  std::vector<std::string> groups;

  void add(Command& command);
  // Before there is a model: what goes together, as the options are named; then into the question.
  void apply(QuestionArguments& question, bool chat) const;
};

}  // namespace unpack::cli
