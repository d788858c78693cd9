// JSON values for those who put them into something larger.
#pragma once

#include <string>

#include "unpack/answer.h"
#include "unpack/explain.h"
#include "unpack/json.h"
#include "unpack/result.h"
#include "unpack/spans.h"

namespace unpack::report {

// The members of to_json(result) that differ from prompt to prompt. What is the same for a whole
// run (version, program, model) is left out.
OrderedJson trace_json(const TraceResult& result);
OrderedJson answer_json(const AnswerResult& result);  // all of it
OrderedJson tokens_json(const std::vector<Token>& tokens);
OrderedJson program_json(const ProgramInfo& program);
OrderedJson model_json(const ModelInfo& model);
OrderedJson options_json(const Options& options);
OrderedJson sentences_json(const std::vector<Sentence>& sentences, const Writers& writers);
OrderedJson groups_json(const std::vector<SpanCredit>& groups);

// On one line; what is no UTF-8 is replaced.
std::string compact(const OrderedJson& json);

}  // namespace unpack::report
