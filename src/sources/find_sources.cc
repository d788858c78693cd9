#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/segments.h"
#include "unpack/chat.h"
#include "unpack/cost.h"
#include "unpack/error.h"
#include "unpack/sources.h"

namespace unpack {
namespace {

std::string filled(const std::string& pattern,
                   const std::vector<std::pair<std::string, std::string>>& values) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size();) {
    bool found = false;
    for (const auto& [name, value] : values) {
      if (pattern.compare(i, name.size(), name) != 0) continue;
      out += value;
      i += name.size();
      found = true;
      break;
    }
    if (!found) out += pattern[i++];
  }
  return out;
}

constexpr std::size_t kMostBytesPerToken = 64;  // more text than this is not even split

std::string sources_prompt(const SourcesOptions& options) {
  check_sources(options);
  std::string documents;
  for (const SourceDocument& document : options.documents)
    documents +=
        filled(options.document_template, {{"{name}", document.name}, {"{text}", document.text}});
  return filled(options.prompt_template,
                {{"{documents}", documents}, {"{question}", options.question}});
}

// The most bytes that a prompt may have; throws InputError where there are more.
std::size_t check_text(const std::string& prompt, const SourcesOptions& options) {
  const std::size_t longest = options.most_tokens * kMostBytesPerToken;
  if (options.most_tokens > 0 && prompt.size() > longest)
    throw InputError(
        fmt::format("the prompt has {} bytes, more than the limit of {}", prompt.size(), longest));
  return longest;
}

void check_room(std::size_t prompt, std::size_t answer, const SourcesOptions& options) {
  if (options.most_tokens > 0 && prompt + answer > static_cast<std::size_t>(options.most_tokens))
    throw InputError(fmt::format("{} {} tokens, more than the limit of {}",
                                 answer > 0 ? "prompt and answer have" : "the prompt has",
                                 prompt + answer, options.most_tokens));
}

// Bytes of the tokens one after the other, and where each begins.
struct Layout {
  std::string text;
  std::vector<std::size_t> starts;

  Layout(const Model& model, const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) {
      starts.push_back(text.size());
      text += model.tokenizer().token_bytes(id);
    }
  }
  int token_at(std::size_t byte) const {
    return (std::upper_bound(starts.begin(), starts.end(), byte) - starts.begin()) - 1;
  }
  // Tokens whose first letter lies in the bytes [begin, end).
  Span span(std::string name, std::size_t begin, std::size_t end) const {
    while (begin < end && (text[begin] == ' ' || text[begin] == '\n')) ++begin;
    while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\n')) --end;
    return {std::move(name), token_at(begin), token_at(end > begin ? end - 1 : begin)};
  }
};

std::vector<SourcePlace> place_documents(const SourcesOptions& options, const Layout& layout) {
  std::vector<SourcePlace> places;
  std::size_t from = 0;
  for (const SourceDocument& document : options.documents) {
    const std::size_t at = layout.text.find(document.text, from);
    if (at == std::string::npos)
      throw InputError(
          fmt::format("document {} cannot be found again in the prompt's tokens: the tokenizer "
                      "changes its text",
                      document.name));
    SourcePlace place{document.name, layout.span(document.name, at, at + document.text.size()), {}};
    for (const base::TextSegment& segment :
         base::cut_text(document.text, base::SegmentKind::sentence)) {
      place.sentences.push_back(
          {layout.span(fmt::format("{}.{}", places.size() + 1, place.sentences.size() + 1),
                       at + segment.begin, at + segment.end),
           document.text.substr(segment.begin, segment.end - segment.begin)});
    }
    // A token belongs to one sentence: the one it begins in.
    for (std::size_t i = 1; i < place.sentences.size(); ++i) {
      Span &before = place.sentences[i - 1].span, &now = place.sentences[i].span;
      if (now.from <= before.to) now.from = std::min(before.to + 1, now.to + 1);
      before.to = now.from - 1;
    }
    from = at + document.text.size();
    places.push_back(std::move(place));
  }
  return places;
}

double sum_over(const std::vector<double>& credit, const Span& span) {
  double sum = 0;
  for (int s = span.from; s <= span.to && s < std::ssize(credit); ++s) sum += credit[s];
  return sum;
}

}  // namespace

void check_sources(const SourcesOptions& options) {
  if (options.documents.empty()) throw InputError("there are no documents");
  if (options.question.find_first_not_of(" \t\r\n") == std::string::npos)
    throw InputError("the question is empty");
  for (const char* name : {"{documents}", "{question}"}) {
    if (options.prompt_template.find(name) == std::string::npos)
      throw InputError(fmt::format("the template of the prompt lacks {}", name));
  }
  if (options.document_template.find("{text}") == std::string::npos)
    throw InputError("the template of a document lacks {text}");
}

std::vector<TokenId> sources_tokens(const Model& model, const SourcesOptions& options) {
  const std::string prompt = sources_prompt(options);
  check_text(prompt, options);
  if (!options.chat) return model.encode_prompt(prompt);
  return chat_prompt(model, make_conversation(prompt, std::nullopt)).ids;
}

Planned planned_sources(const Model& model, std::size_t prompt, const SourcesOptions& options) {
  check_room(prompt, 1, options);
  const std::size_t context = model.config().n_ctx;
  const std::size_t answer = options.answer ? model.tokenizer().encode(*options.answer).size()
                                            : std::min(static_cast<std::size_t>(options.generate),
                                                       context - std::min(context, prompt));
  return planned_answer(prompt, std::max<std::size_t>(answer, 1), 0, options.options);
}

SourcesResult find_sources(const Model& model, const SourcesOptions& options,
                           const RunContext& context) {
  SourcesResult result;
  result.program = model.program();
  result.model = model.info();
  result.options = options.options;
  result.question = options.question;
  result.prompt = sources_prompt(options);
  const std::size_t longest = check_text(result.prompt, options);
  std::vector<TokenId> prompt, stops;
  std::optional<std::string> prompt_text = result.prompt;
  if (options.chat) {
    Conversation conversation = make_conversation(result.prompt, std::nullopt);
    if (options.most_tokens > 0) conversation.longest = longest;
    const ChatPrompt chat = chat_prompt(model, conversation);
    prompt = chat.ids;
    stops = chat.stops;
    prompt_text.reset();
  } else {
    prompt = model.encode_prompt(result.prompt);
  }
  result.prompt_length = prompt.size();
  check_room(prompt.size(), 1, options);
  result.documents = place_documents(options, Layout(model, prompt));

  std::vector<TokenId> answer;
  if (options.answer) {
    std::string text = *options.answer;
    // A template that ends in a word wants a blank before the answer.
    if (!text.empty() && !options.chat && !std::isspace(static_cast<unsigned char>(text[0])) &&
        !std::isspace(static_cast<unsigned char>(result.prompt.back())))
      text.insert(0, " ");
    answer = encode_after(model, prompt, prompt_text, text);
  } else {
    SamplingOptions sampling;
    sampling.max_tokens = options.generate;
    if (options.most_tokens > 0)
      sampling.max_tokens =
          std::min(sampling.max_tokens, options.most_tokens - result.prompt_length);
    result.generated = true;
    answer = generate_until(model, prompt, sampling, stops, {}, context);
  }
  if (answer.empty()) throw InputError("the answer has no tokens: give one, or more room for it");
  check_room(prompt.size(), answer.size(), options);
  const AnswerResult explained =
      explain_answer(model, prompt, answer, std::nullopt, options.options, context);
  result.tokens = explained.tokens;

  const Layout layout(model, answer);
  result.answer = layout.text;
  for (const base::TextSegment& segment :
       base::cut_text(layout.text, base::SegmentKind::sentence)) {
    AnswerSentence sentence;
    sentence.text = layout.text.substr(segment.begin, segment.end - segment.begin);
    Span span = layout.span("", segment.begin, segment.end);
    if (!result.sentences.empty())
      span.from = std::max(span.from, result.sentences.back().span.to - result.prompt_length + 1);
    if (span.from > span.to) continue;
    sentence.span = {fmt::format("answer {}", result.sentences.size() + 1),
                     span.from + result.prompt_length, span.to + result.prompt_length};
    std::vector<double> credit(prompt.size(), 0.0);
    for (int i = span.from; i <= span.to; ++i) {
      const AnswerRow& row = explained.rows[i];
      sentence.log_probability += row.log_probability;
      for (std::size_t s = 0; s < row.token_credit.size(); ++s)
        (s < prompt.size() ? credit[s] : sentence.answer_credit) += row.token_credit[s];
    }
    double inside = 0, all = 0;
    for (const double c : credit) all += c;
    std::vector<SourceToken> tokens;
    for (const SourcePlace& place : result.documents) {
      sentence.document_credit.push_back(sum_over(credit, place.span));
      inside += sentence.document_credit.back();
      std::vector<double>& parts = sentence.sentence_credit.emplace_back();
      for (const SourceSentence& part : place.sentences)
        parts.push_back(sum_over(credit, part.span));
      for (int s = place.span.from; s <= place.span.to; ++s)
        tokens.push_back({s, result.tokens[s].text, credit[s]});
    }
    sentence.other_credit = all - inside;
    std::stable_sort(tokens.begin(), tokens.end(), [](const SourceToken& a, const SourceToken& b) {
      return std::abs(a.credit) > std::abs(b.credit);
    });
    tokens.resize(std::min(tokens.size(), options.strongest));
    sentence.strongest = std::move(tokens);
    result.sentences.push_back(std::move(sentence));
  }
  return result;
}

}  // namespace unpack
