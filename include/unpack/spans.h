// Spans of a prompt, by name: sentences, lines, paragraphs, turns, or what the user says.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/result.h"

namespace unpack {

class Model;

// Positions from..to, both included.
struct Span {
  std::string name;
  int from = 0;
  int to = 0;
  bool operator==(const Span&) const = default;
};

enum class SpanKind { sentence, line, paragraph, turn };
void check_span_kind(SpanKind kind, bool chat);  // UsageError: turns are those of a conversation
const char* to_string(SpanKind kind);

// The prompt's positions [from, to) cut into spans; every position belongs to one. Special tokens
// (BOS) and what stands between turns belong to spans that are named after their text.
std::vector<Span> cut_spans(const Model& model, std::span<const TokenId> ids, SpanKind kind,
                            int from = 0, std::optional<int> to = {});
// "NAME=from:to", "NAME=at"; positions count from the end where negative, `to` is included. Throws
// UsageError for what is no span, InputError for one outside a prompt of `length` tokens.
Span parse_span(const std::string& text, int length);
void check_span(const std::string& text);  // what can be known before there is a prompt

// The credit of every span, in their order; what no span covers is the last one, "(rest)".
struct SpanCredit {
  Span span;
  std::string text;
  double credit = 0;
  double percent = 0;  // of the total positive credit of the spans
};
std::vector<SpanCredit> span_credits(const std::vector<Span>& spans,
                                     const std::vector<Token>& tokens,
                                     const std::vector<double>& credit);
std::string to_json(const std::vector<SpanCredit>& groups);
std::string to_text(const std::vector<SpanCredit>& groups);

}  // namespace unpack
