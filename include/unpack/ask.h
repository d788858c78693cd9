// From what is given for a prompt (a text, ids, a conversation) to its tokens, and what a question
// about an answer or about groups is answered with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "unpack/answer.h"
#include "unpack/cost.h"
#include "unpack/question.h"
#include "unpack/spans.h"

namespace unpack {

struct GivenPrompt {
  std::optional<std::string> text;
  std::optional<std::vector<TokenId>> ids;  // used as they are
  std::optional<std::string> messages;      // a conversation in JSON; implies chat
  bool no_bos = false;
  ChatSettings chat;
  std::size_t longest = 0;  // bytes of a text, at most; 0: no limit

  bool is_chat() const { return chat.on || messages || chat.chat_template; }
  void check() const;  // that all goes together: UsageError
};

struct MadePrompt {
  std::vector<TokenId> ids;
  std::string text;    // what the tokens were made from, empty for ids
  bool plain = false;  // a text without a template: what follows may be split together with it
  bool no_bos = false;
  bool chat = false;
  std::vector<Span> turns;     // of a conversation
  std::vector<TokenId> stops;  // what ends the model's turn, further to the model's own
};
// Throws InputError and UsageError; nothing given is a UsageError, too.
MadePrompt make_prompt(const Model& model, const GivenPrompt& given);
// The tokens of a text that follows the prompt.
std::vector<TokenId> encode_after(const Model& model, const MadePrompt& prompt,
                                  const std::string& text);

// The groups that were asked for, none where none were.
std::vector<Span> spans_of(const Asked& asked, const Model& model, const MadePrompt& prompt);
// Of a question with an answer: its tokens, found before any work.
struct AnswerTokens {
  std::vector<TokenId> answer;
  std::optional<std::vector<TokenId>> versus;
  std::vector<Span> spans;
};
AnswerTokens answer_tokens(const Asked& asked, const Model& model, const MadePrompt& prompt);
// What asking it takes (unpack/cost.h).
Planned planned_question(const MadePrompt& prompt, const Question& question,
                         const std::optional<AnswerTokens>& answer = std::nullopt);
AnswerResult explain_answer(const Model& model, const MadePrompt& prompt,
                            const AnswerTokens& tokens, const Options& options,
                            const RunContext& context = {});

}  // namespace unpack
