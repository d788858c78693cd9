#include "answer.h"

#include "unpack/error.h"
#include "unpack/spans.h"

namespace unpack::cli {

void AnswerArguments::add(Command& command) {
  command.option(
      "--answer", "TEXT",
      "Explain a continuation of several tokens: the sum over its tokens, each by its own "
      "row",
      answer);
  command.option("--versus-answer", "TEXT", "With --answer: another answer to set it against",
                 versus_answer);
  command.repeated("--group", "NAME=from:to",
                   "Add up the credit of positions from..to under a name (may be repeated)",
                   groups);
  command.option("--group-by", "sentence|line|paragraph|turn",
                 "Add up the credit of every sentence, line, paragraph, or turn of a conversation",
                 group_by);
}

void AnswerArguments::apply(QuestionArguments& question, bool chat) const {
  if (versus_answer && !answer) throw UsageError("--versus-answer goes with --answer");
  if (group_by && !groups.empty()) throw UsageError("--group and --group-by do not go together");
  Asked& asked = question.asked();
  if (group_by) asked.group_by = parse_span_kind(*group_by);
  if (asked.group_by == SpanKind::turn && !chat)
    throw UsageError("--group-by turn goes with --chat");
  for (const std::string& group : groups) check_span(group);
  asked.groups = groups;
  if (!answer) return;
  asked.answer = *answer;
  if (versus_answer) asked.versus_answer = *versus_answer;
  const Target& target = asked.question.target;
  if (question.has_texts() || !target.ids.empty() || target.versus || target.raw ||
      asked.question.root || asked.method != Method::unpack)
    throw UsageError(
        "--answer explains a span of tokens: --target, --versus, --raw-logit, --root, --method and "
        "--words do not go with it");
}

}  // namespace unpack::cli
