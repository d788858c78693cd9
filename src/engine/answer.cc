#include "unpack/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/check_question.h"
#include "engine/state.h"
#include "unpack/error.h"

namespace unpack {
namespace {

// Rows `first` .. of a prompt followed by an answer; row `contrast` is set against another token.
std::vector<AnswerRow> answer_rows(const Model& model, std::span<const TokenId> prompt,
                                   std::span<const TokenId> answer, std::size_t first,
                                   std::optional<TokenId> contrast, const Options& options,
                                   double& log_probability, const RunContext& context) {
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), answer.begin(), answer.end());
  // The last token predicts nothing that was asked for.
  const Prepared prepared =
      model.prepare(std::span<const TokenId>(ids).first(ids.size() - 1), context);
  std::vector<AnswerRow> rows;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    context.report("tokens", i, answer.size());
    const int position = prompt.size() + i - 1;
    const auto logits = engine::state_of(prepared)->logits_at(position);
    const double own = (*logits)[answer[i]] - engine::log_sum_exp(*logits);
    log_probability += own;
    if (i < first) continue;
    Question question;
    question.options = options;
    question.target.ids = {answer[i]};
    question.target.position = position;
    if (i == first && contrast) question.target.versus = std::vector<TokenId>{*contrast};
    question.paths.top = 0;
    const TraceResult trace = prepared.trace(question, context);
    AnswerRow row;
    row.position = position;
    row.target_id = answer[i];
    row.text = trace.target.text;
    if (i == first && contrast) {
      row.versus_id = contrast;
      row.versus_text = model.token_text(*contrast);
    }
    row.log_probability = own;
    row.logit_difference = trace.target.logit_difference.value_or(0);
    row.token_credit.assign(trace.token_credit.begin(), trace.token_credit.begin() + position + 1);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<TokenId> encode_after(const Model& model, std::span<const TokenId> prompt,
                                  const std::optional<std::string>& prompt_text,
                                  std::string_view text, bool no_bos) {
  if (prompt_text) {
    const std::vector<TokenId> whole =
        model.encode_prompt(*prompt_text + std::string(text), no_bos);
    if (whole.size() > prompt.size() && std::equal(prompt.begin(), prompt.end(), whole.begin()))
      return {whole.begin() + prompt.size(), whole.end()};
  }
  return model.tokenizer().encode(text);
}

AnswerResult explain_answer(const Model& model, std::span<const TokenId> prompt,
                            std::span<const TokenId> answer,
                            const std::optional<std::vector<TokenId>>& versus,
                            const Options& options, const RunContext& context) {
  if (prompt.empty()) throw InputError("the prompt has no tokens");
  if (answer.empty()) throw InputError("the answer has no tokens");
  engine::check_ids(answer, "answer", model.config().vocab_size);
  options.check();
  AnswerResult result;
  result.program = model.program();
  result.model = model.info();
  result.options = options;
  result.prompt_length = prompt.size();
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), answer.begin(), answer.end());
  result.tokens = model.tokens(ids);

  std::size_t first = 0;
  std::optional<TokenId> contrast, own;
  if (versus) {
    if (versus->empty()) throw InputError("the other answer has no tokens");
    engine::check_ids(*versus, "versus_answer", model.config().vocab_size);
    const std::size_t shorter = std::min(answer.size(), versus->size());
    while (first < shorter && answer[first] == (*versus)[first]) ++first;
    if (first == answer.size() && first == versus->size())
      throw InputError("the two answers are the same");
    if (first < shorter) contrast = (*versus)[first];
  }
  result.rows =
      answer_rows(model, prompt, answer, first, contrast, options, result.log_probability, context);
  if (versus) {
    double log_probability = 0;
    // The token where they part is the contrast of the first answer's row already.
    result.versus_rows = answer_rows(model, prompt, *versus, first + (contrast ? 1 : 0), own,
                                     options, log_probability, context);
    result.versus_log_probability = log_probability;
    result.versus_tokens = model.tokens(*versus);
  }

  result.token_credit.assign(prompt.size(), 0.0);
  const auto add = [&](const AnswerRow& row, double sign) {
    for (std::size_t s = 0; s < row.token_credit.size(); ++s) {
      (s < prompt.size() ? result.token_credit[s] : result.answer_credit) +=
          sign * row.token_credit[s];
    }
  };
  for (const AnswerRow& row : result.rows) add(row, 1);
  for (const AnswerRow& row : result.versus_rows) add(row, -1);
  double positive = 0;
  for (const double credit : result.token_credit) positive += std::max(credit, 0.0);
  for (const double credit : result.token_credit)
    result.token_percent.push_back(positive > 0 ? 100 * credit / positive : 0);
  return result;
}

}  // namespace unpack
