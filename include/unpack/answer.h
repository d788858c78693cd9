// Answers of several tokens: the whole span explained, each token by its own row, from one prepare.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/prepared.h"
#include "unpack/report.h"
#include "unpack/spans.h"

namespace unpack {

// One token of an answer. What is explained is its logit against the mean of the vocabulary, or
// against `versus_id` where the two answers part.
struct AnswerRow {
  int position = 0;  // of the predicting token
  TokenId target_id = 0;
  std::string text;
  std::optional<TokenId> versus_id;
  std::string versus_text;
  double log_probability = 0;
  double logit_difference = 0;
  std::vector<double> token_credit;  // positions up to it
};

struct AnswerResult {
  ProgramInfo program;
  ModelInfo model;
  Options options;
  std::vector<Token> tokens;  // prompt and answer
  int prompt_length = 0;
  std::vector<AnswerRow> rows;
  double log_probability = 0;  // of the answer: the sum over its tokens
  // The other answer, where there is one: its own tokens from where it parts from the first.
  std::vector<Token> versus_tokens;
  std::vector<AnswerRow> versus_rows;
  std::optional<double> versus_log_probability;
  // Of every position of the prompt: the rows added up, those of the other answer taken off.
  std::vector<double> token_credit;
  std::vector<double> token_percent;
  double answer_credit = 0;  // what ends at the answer's own earlier tokens
  std::vector<SpanCredit> groups;
};

AnswerResult explain_answer(const Model& model, std::span<const TokenId> prompt,
                            std::span<const TokenId> answer,
                            const std::optional<std::vector<TokenId>>& versus,
                            const Options& options, const RunContext& context = {});

// The text as it splits when it follows the prompt; on its own where the prompt's text is not given
// or its last token would change.
std::vector<TokenId> encode_after(const Model& model, std::span<const TokenId> prompt,
                                  const std::optional<std::string>& prompt_text,
                                  std::string_view text, bool no_bos = false);

std::string to_json(const AnswerResult& result);
std::string to_terminal(const AnswerResult& result, const TerminalStyle& style);

}  // namespace unpack
