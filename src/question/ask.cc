#include "unpack/ask.h"

#include <fmt/format.h>

#include "engine/check_question.h"
#include "unpack/chat.h"
#include "unpack/error.h"

namespace unpack {

void GivenPrompt::check() const {
  if (text && ids) throw UsageError("give prompt or ids, not both");
  if ((text || ids) && messages)
    throw UsageError(fmt::format("give {} or messages, not both", text ? "prompt" : "ids"));
  if (chat.system && !is_chat()) throw UsageError("system goes with chat");
  if (is_chat() && ids) throw UsageError("chat takes a prompt or messages, not ids");
  if (is_chat() && no_bos)
    throw UsageError("no_bos does not go with chat: the template writes the special tokens");
}

MadePrompt make_prompt(const Model& model, const GivenPrompt& given) {
  given.check();
  MadePrompt made;
  made.no_bos = given.no_bos;
  if (given.ids) {
    engine::check_ids(*given.ids, "ids", model.config().vocab_size);
    made.ids = *given.ids;
    return made;
  }
  if (!given.text && !given.messages) throw UsageError("give a prompt or its token ids");
  made.text = given.messages ? *given.messages : *given.text;
  if (given.longest > 0 && made.text.size() > given.longest)
    throw InputError(fmt::format("the prompt has {} bytes, more than the limit of {}",
                                 made.text.size(), given.longest));
  if (given.is_chat()) {
    Conversation conversation =
        make_conversation(made.text, given.chat.system, given.messages.has_value());
    conversation.chat_template = given.chat.chat_template;
    conversation.template_origin = given.chat.template_origin;
    conversation.longest = given.longest;
    ChatPrompt prompt = chat_prompt(model, conversation);
    made.text = std::move(prompt.text);
    made.ids = std::move(prompt.ids);
    made.turns = std::move(prompt.turns);
    made.stops = std::move(prompt.stops);
    made.chat = true;
    return made;
  }
  made.plain = true;
  made.ids = model.encode_prompt(made.text, given.no_bos);
  return made;
}

std::vector<TokenId> encode_after(const Model& model, const MadePrompt& prompt,
                                  const std::string& text) {
  return encode_after(model, prompt.ids, prompt.plain ? std::optional(prompt.text) : std::nullopt,
                      text, prompt.no_bos);
}

std::vector<Span> spans_of(const Asked& asked, const Model& model, const MadePrompt& prompt) {
  std::vector<Span> spans;
  for (const std::string& group : asked.groups)
    spans.push_back(parse_span(group, prompt.ids.size()));
  if (!asked.group_by) return spans;
  if (*asked.group_by == SpanKind::turn && prompt.chat) return prompt.turns;
  return cut_spans(model, prompt.ids, *asked.group_by);
}

Planned planned_question(const MadePrompt& prompt, const Question& question,
                         const std::optional<AnswerTokens>& answer) {
  if (answer)
    return planned_answer(prompt.ids.size(), answer->answer.size(),
                          answer->versus ? answer->versus->size() : 0, question.options);
  Planned planned = planned_trace(prompt.ids.size(), question.options);
  planned.paths = question.paths.top > 0;
  return planned;
}

AnswerTokens answer_tokens(const Asked& asked, const Model& model, const MadePrompt& prompt) {
  const auto tokens = [&](const AnswerGiven& answer) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&answer)) return *ids;
    return encode_after(model, prompt, std::get<std::string>(answer));
  };
  AnswerTokens out;
  out.answer = tokens(*asked.answer);
  if (out.answer.empty()) throw InputError("the answer has no tokens");
  if (asked.versus_answer) out.versus = tokens(*asked.versus_answer);
  out.spans = spans_of(asked, model, prompt);
  return out;
}

AnswerResult explain_answer(const Model& model, const MadePrompt& prompt,
                            const AnswerTokens& tokens, const Options& options,
                            const RunContext& context) {
  AnswerResult result =
      explain_answer(model, prompt.ids, tokens.answer, tokens.versus, options, context);
  if (!tokens.spans.empty())
    result.groups = span_credits(tokens.spans, result.tokens, result.token_credit);
  return result;
}

}  // namespace unpack
