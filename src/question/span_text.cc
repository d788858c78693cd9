// Spans as a question names them.
#include <fmt/format.h>

#include <charconv>

#include "unpack/error.h"
#include "unpack/spans.h"
#include "unpack/writers.h"

namespace unpack {
namespace {

int span_place(std::string_view text, const std::string& whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    throw UsageError(fmt::format(
        "group takes NAME=from:to with two positions, such as question=4:9, not \"{}\"", whole));
  return value;
}

// Positions as they are given.
Span read_span(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError(fmt::format(
        "group takes NAME=from:to with two positions, such as question=4:9, not \"{}\"", text));
  const std::string_view places = std::string_view(text).substr(equals + 1);
  const std::size_t colon = places.find(':');
  Span span{text.substr(0, equals), span_place(places.substr(0, colon), text), 0};
  span.to =
      colon == std::string_view::npos ? span.from : span_place(places.substr(colon + 1), text);
  return span;
}

}  // namespace

void check_span_kind(SpanKind kind, bool chat) {
  if (kind == SpanKind::turn && !chat)
    throw UsageError("turns are those of a conversation: group_by turn goes with chat");
}

const char* to_string(SpanKind kind) {
  switch (kind) {
    case SpanKind::sentence:
      return "sentence";
    case SpanKind::line:
      return "line";
    case SpanKind::paragraph:
      return "paragraph";
    case SpanKind::turn:
      break;
  }
  return "turn";
}

void check_span(const std::string& text) { read_span(text); }

Span parse_span(const std::string& text, int length) {
  Span span = read_span(text);
  span.from = resolve_position(span.from, length);
  span.to = resolve_position(span.to, length);
  if (span.to < span.from)
    throw InputError(fmt::format("the group {} ends at {}, before it begins at {}", span.name,
                                 span.to, span.from));
  return span;
}

}  // namespace unpack
