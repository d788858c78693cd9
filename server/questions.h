// Requests of the API as the engine's own structs; the fields carry the names of the command line's
// options.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "request_fields.h"
#include "unpack/ask.h"
#include "unpack/intervene.h"
#include "unpack/model.h"
#include "unpack/sources.h"

namespace unpack::server {

struct Limits {
  int max_tokens = 0;
  std::size_t max_paths = 0;
};

enum class Format { json, html, svg, tikz };

struct TraceRequest {
  MadePrompt prompt;
  Question question;
  std::vector<Span> spans;             // groups of a trace
  std::optional<AnswerTokens> answer;  // in place of a trace
  Format format = Format::json;
  bool incoming = true;  // of a root: every node that it reads
};

struct SourcesRequest {
  SourcesOptions options;
  Format format = Format::json;
};

struct PredictRequest {
  std::vector<TokenId> ids;
  PredictOptions options;
};

struct InteractionsRequest {
  std::vector<TokenId> ids;
  std::optional<int> query;
  bool all = false;
};

struct InterveneRequest {
  std::vector<TokenId> ids;
  Intervention intervention;
  Target target;
};

// Parts that several requests share. A prompt is a text, ids, or a conversation.
MadePrompt make_request_prompt(RequestFields& fields, const Model& model, const Limits& limits);
std::vector<TokenId> read_prompt(RequestFields& fields, const Model& model, const Limits& limits);
// InputError where prompt and answer together are over the server's limit or the model's context.
void check_length(std::size_t prompt, std::size_t answer, const Model& model, const Limits& limits);
// What is left of a request as a question about `ids`, of which only the `allowed` fields may be
// there; with the server's own limit on paths.
Asked read_asked(RequestFields& fields, const Model& model, const Limits& limits,
                 std::size_t length, const std::vector<std::string>& allowed);
Question read_question(RequestFields& fields, const Model& model, const Limits& limits,
                       const std::vector<TokenId>& ids, const std::vector<std::string>& allowed);
std::vector<std::string> target_fields();
std::vector<std::string> option_fields();  // those of Options

MadePrompt read_tokenize(const Fields& body, const Model& model, const Limits& limits);
PredictRequest read_predict(const Fields& body, const Model& model, const Limits& limits);
TraceRequest read_trace(const Fields& body, const Model& model, const Limits& limits);
InteractionsRequest read_interactions(const Fields& body, const Model& model, const Limits& limits);
SourcesRequest read_sources(const Fields& body, const Model& model, const Limits& limits);
InterveneRequest read_intervene(const Fields& body, const Model& model, const Limits& limits);
InterveneRequest read_prove(const Fields& body, const Model& model, const Limits& limits);

}  // namespace unpack::server
