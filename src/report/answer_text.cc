// An explained answer as JSON and for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/json.h"
#include "unpack/answer.h"
#include "unpack/cost.h"
#include "unpack/json.h"

namespace unpack {
namespace {

using Json = OrderedJson;

Json rows_json(const std::vector<AnswerRow>& rows) {
  Json list = Json::array();
  for (const AnswerRow& row : rows) {
    Json entry = {{"position", row.position}, {"target_id", row.target_id}, {"text", row.text}};
    entry["versus_id"] = row.versus_id ? Json(*row.versus_id) : Json();
    entry["log_probability"] = row.log_probability;
    entry["probability"] = std::exp(row.log_probability);
    entry["logit_difference"] = row.logit_difference;
    entry["token_credit"] = row.token_credit;
    list.push_back(std::move(entry));
  }
  return list;
}

std::string shown(const std::string& text) { return report::compact(text); }

}  // namespace

std::string to_json(const QuestionCost& cost, const Planned& planned) {
  return Json{{"tokens", planned.tokens}, {"targets", planned.targets},
              {"gflop", cost.gflop},      {"memory_mib", cost.memory_mib},
              {"seconds", cost.seconds},  {"text", cost_text(cost, planned)}}
      .dump();
}

Json report::answer_json(const AnswerResult& result) {
  Json json = {{"version", 1},
               {"program", program_json(result.program)},
               {"model", model_json(result.model)},
               {"tokens", report::tokens_json(result.tokens)},
               {"prompt_length", result.prompt_length}};
  json["answer"] = {{"log_probability", result.log_probability}, {"rows", rows_json(result.rows)}};
  if (result.versus_log_probability) {
    json["versus_answer"] = {{"tokens", report::tokens_json(result.versus_tokens)},
                             {"log_probability", *result.versus_log_probability},
                             {"rows", rows_json(result.versus_rows)}};
  } else {
    json["versus_answer"] = nullptr;
  }
  json["token_credit"] = result.token_credit;
  json["token_percent"] = result.token_percent;
  json["answer_credit"] = result.answer_credit;
  if (!result.groups.empty()) json["groups"] = report::groups_json(result.groups);
  return json;
}

std::string to_json(const AnswerResult& result) {
  return report::compact(report::answer_json(result));
}

std::string to_terminal(const AnswerResult& result, const TerminalStyle& style) {
  std::string text = fmt::format("Answer, log-probability {:.4f}\n", result.log_probability);
  const auto rows = [&](const std::vector<AnswerRow>& list) {
    for (const AnswerRow& row : list) {
      text += fmt::format("  {:>8.3f}  {:>+9.4f}  {}{}\n", std::exp(row.log_probability),
                          row.logit_difference, shown(row.text),
                          row.versus_id ? " versus " + shown(row.versus_text) : "");
    }
  };
  rows(result.rows);
  if (result.versus_log_probability) {
    text += fmt::format("Against, log-probability {:.4f}\n", *result.versus_log_probability);
    rows(result.versus_rows);
  }
  text += "\nTokens of the prompt\n";
  double largest = 0;
  for (const double credit : result.token_credit) largest = std::max(largest, std::abs(credit));
  for (std::size_t s = 0; s < result.token_credit.size(); ++s) {
    const double credit = result.token_credit[s];
    const std::size_t bar = largest > 0 ? std::lround(20 * std::abs(credit) / largest) : 0;
    std::string mark;
    for (std::size_t i = 0; i < bar; ++i) mark += style.unicode ? "\u2588" : "#";
    text += fmt::format("  {:>4}  {:>+10.4f} {:>+7.1f}%  {:<20}  {}\n", s, credit,
                        result.token_percent[s], shown(result.tokens[s].text),
                        (credit < 0 ? "-" : " ") + mark);
  }
  text +=
      fmt::format("  {:>+10.4f} ends at the answer's own earlier tokens\n", result.answer_credit);
  if (!result.groups.empty()) text += to_text(result.groups);
  return text;
}

}  // namespace unpack
