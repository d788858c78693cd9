#include "unpack/spans.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/segments.h"
#include "report/json.h"
#include "report/text.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/model.h"

namespace unpack {
std::vector<Span> cut_spans(const Model& model, std::span<const TokenId> ids, SpanKind kind,
                            int from, std::optional<int> to) {
  check_span_kind(kind, false);
  const int end = to.value_or(ids.size());
  std::string text;
  struct Place {
    std::size_t begin, at;  // bytes; `at`: the first that is no blank
    bool special;
  };
  std::vector<Place> places;
  for (int s = from; s < end; ++s) {
    const TokenId id = ids[s];
    const std::string bytes =
        model.has_tokenizer() ? model.tokenizer().token_bytes(id) : model.token_text(id);
    const bool special = report::is_special_token(bytes);
    const std::size_t word = bytes.find_first_not_of(" \t\r\n");
    // A special token ends the sentence before it and is no part of any.
    places.push_back({text.size(), text.size() + (word == std::string::npos ? 0 : word), special});
    text += special ? "\n\n" : bytes;
  }
  const base::SegmentKind cut = kind == SpanKind::sentence ? base::SegmentKind::sentence
                                : kind == SpanKind::line   ? base::SegmentKind::line
                                                           : base::SegmentKind::paragraph;
  const std::vector<base::TextSegment> segments = base::cut_text(text, cut);
  std::vector<Span> spans;
  std::size_t current = segments.size();
  int count = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const int position = from + i;
    if (places[i].special) {
      spans.push_back({model.token_text(ids[position]), position, position});
      current = segments.size();
      continue;
    }
    std::size_t segment = 0;
    while (segment + 1 < segments.size() && segments[segment].end <= places[i].at) ++segment;
    if (segment != current || spans.empty()) {
      spans.push_back({fmt::format("{} {}",
                                   cut == base::SegmentKind::sentence ? "sentence"
                                   : cut == base::SegmentKind::line   ? "line"
                                                                      : "paragraph",
                                   ++count),
                       position, position});
      current = segment;
    }
    spans.back().to = position;
  }
  return spans;
}

std::vector<SpanCredit> span_credits(const std::vector<Span>& spans,
                                     const std::vector<Token>& tokens,
                                     const std::vector<double>& credit) {
  std::vector<SpanCredit> out;
  std::vector<bool> covered(credit.size(), false);
  for (const Span& span : spans) {
    SpanCredit group;
    group.span = span;
    for (int s = span.from; s <= span.to && s < std::ssize(credit); ++s) {
      const std::size_t i = s;
      group.credit += credit[i];
      covered[i] = true;
      if (i < tokens.size()) group.text += tokens[i].text;
    }
    out.push_back(std::move(group));
  }
  SpanCredit rest;
  bool any = false;
  for (std::size_t i = 0; i < credit.size(); ++i) {
    if (covered[i]) continue;
    any = true;
    rest.credit += credit[i];
  }
  if (any) {
    rest.span = {"(rest)", -1, -1};
    out.push_back(std::move(rest));
  }
  double positive = 0;
  for (const SpanCredit& group : out) positive += std::max(group.credit, 0.0);
  for (SpanCredit& group : out) group.percent = positive > 0 ? 100 * group.credit / positive : 0;
  return out;
}

OrderedJson report::groups_json(const std::vector<SpanCredit>& groups) {
  auto list = OrderedJson::array();
  for (const SpanCredit& group : groups) {
    OrderedJson entry = {{"name", group.span.name}};
    if (group.span.from >= 0) {
      entry["from"] = group.span.from;
      entry["to"] = group.span.to;
      entry["text"] = group.text;
    }
    entry["credit"] = group.credit;
    entry["percent"] = group.percent;
    list.push_back(std::move(entry));
  }
  return list;
}

std::string to_json(const std::vector<SpanCredit>& groups) {
  return report::compact(report::groups_json(groups));
}

std::string to_text(const std::vector<SpanCredit>& groups) {
  std::size_t width = 4;
  for (const SpanCredit& group : groups) width = std::max(width, group.span.name.size());
  std::string text = "\nGroups\n";
  for (const SpanCredit& group : groups) {
    std::string shown =
        JsonValue(group.text).dump(-1, ' ', false, JsonValue::error_handler_t::replace);
    constexpr std::size_t kShown = 60;
    if (shown.size() > kShown) {
      std::size_t cut = kShown;
      while (cut > 0 && (static_cast<unsigned char>(shown[cut]) & 0xC0U) == 0x80U) --cut;
      shown = shown.substr(0, cut) + "...\"";
    }
    text += fmt::format("  {:>+10.4f} {:>+7.1f}%  {:<{}}  {}\n", group.credit, group.percent,
                        group.span.name, width, group.span.from >= 0 ? shown : "");
  }
  return text;
}

}  // namespace unpack
