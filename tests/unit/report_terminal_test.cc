#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <sstream>

#include "report/text.h"
#include "unit/report_fixture.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using test::make_trace;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string line_with(const std::string& text, const std::string& part) {
  for (const std::string& line : lines_of(text)) {
    if (line.find(part) != std::string::npos) return line;
  }
  return {};
}

TraceResult one_path_trace() {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path path;
  path.nodes = {{0, 9}, {writers.mlp(0), 9}, {writers.head(8, 6), 13}};
  path.branches = {Branch::none, Branch::mlp, Branch::V};
  path.credit = 0.5;
  path.percent = 14.5;
  r.paths = {path};
  r.coverage = {1, 0.5, 0.8, 2.0};
  return r;
}

TEST(TerminalTrace, ListsPathsWithTheirTokenAndPercent) {
  const std::string text = to_terminal(one_path_trace(), {});
  EXPECT_EQ(line_with(text, "A8.H6@13"),
            "  +14.5%  emb@9 \"John\" -> MLP0@9 -[V]-> A8.H6@13 -> target");
}

TEST(TerminalTrace, SaysTheNetShareFirstAndThenTheShareOfTheMass) {
  TraceResult r = one_path_trace();
  r.token_credit.assign(14, 0.0);
  r.token_credit[9] = 1.25;
  const auto told = [&](double credit) {
    r.paths[0].credit = credit;
    std::string text = to_terminal(r, {});
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  };
  EXPECT_NE(told(0.5).find("1 path carries 40.0% of the net token credit of +1.25; without signs "
                           "25.0% of the mass of all paths (2,"),
            std::string::npos)
      << told(0.5);
  // A share of what nearly cancels would say nothing.
  EXPECT_NE(told(-1.5).find("1 path adds up to -1.5 of a net token credit of +1.25"),
            std::string::npos)
      << told(-1.5);
}

TEST(TerminalTrace, SaysWhatShareOfTheFilteredPathsIsListed) {
  TraceResult r = one_path_trace();
  r.query.from = 9;
  EXPECT_NE(to_terminal(r, {}).find("62.5% of what matches the filters"), std::string::npos);
}

TEST(TerminalTrace, DrawsNegativeCreditToTheLeftOfTheAxis) {
  TraceResult r = make_trace();
  r.token_credit.assign(14, 0.0);
  r.token_credit[1] = 2;
  r.token_credit[3] = -1;
  const std::string text = to_terminal(r, {.color = false, .width = 80, .unicode = false});
  const std::string mary = line_with(text, "1  Mary"), john = line_with(text, "3  John");
  EXPECT_LT(mary.find('|'), mary.find("####"));
  EXPECT_LT(john.find("===="), john.find('|'));
  EXPECT_EQ(john.find('#'), std::string::npos);
}

TEST(TerminalTrace, ShowsRawCreditWherePercentagesMislead) {
  TraceResult r = make_trace();
  r.token_credit.assign(14, -1.0);
  r.token_credit[1] = 0.5;
  r.token_percent.assign(14, -200.0);
  r.warnings = {"percentages mislead here"};
  const std::string text = to_terminal(r, {});
  EXPECT_EQ(line_with(text, "1  Mary").find('%'), std::string::npos);
  EXPECT_NE(text.find("Warning: percentages mislead here"), std::string::npos);
}

TEST(TerminalTrace, IsPlainAsciiWhenAsked) {
  TraceResult r = make_trace({.rooted = true});
  r.tokens[2].text = " 中\n\x1b[31m";
  const std::string text = to_terminal(r, {.color = false, .width = 100, .unicode = false});
  for (const char c : text)
    EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << static_cast<int>(c);
  EXPECT_NE(text.find("\\u{4e2d}\\n\\u{1b}[31m"), std::string::npos);
}

TEST(TerminalTrace, NeverLetsATokenSendEscapeCodes) {
  TraceResult r = make_trace();
  r.tokens[1].text = "\x1b]0;owned\x07\r\u202e";
  r.target.text = r.tokens[1].text;
  const std::string text = to_terminal(r, {});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find("\u202e"), std::string::npos);
}

TEST(TerminalTrace, StaysWithinTheWidth) {
  rc::check([] {
    test::TraceShape shape;
    shape.rooted = *rc::gen::arbitrary<bool>();
    shape.gated = *rc::gen::arbitrary<bool>();
    shape.paths = *rc::gen::inRange<std::size_t>(0, 30);
    shape.texts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
        " a", "中文字中文字中文字", "\n", " averyveryverylongtoken", "<|endoftext|>", ""));
    RC_PRE(!shape.texts.empty());
    TraceResult r = make_trace(shape);
    r.warnings = {
        "a warning in words, long enough to need more than one line of a narrow terminal"};
    const TerminalStyle style{.color = false,
                              .width = *rc::gen::inRange(40, 140),
                              .unicode = *rc::gen::arbitrary<bool>()};
    for (const std::string& line : lines_of(to_terminal(r, style))) {
      if (report::display_width(line) > style.width) RC_FAIL(line);
    }
  });
}

TEST(TerminalTrace, SaysTheSameWithAndWithoutColour) {
  const TraceResult r = make_trace({.rooted = true});
  const std::string plain = to_terminal(r, {.color = false}),
                    painted = to_terminal(r, {.color = true});
  std::string stripped;
  for (std::size_t i = 0; i < painted.size(); ++i) {
    if (painted[i] == '\x1b') {
      i = painted.find('m', i);
    } else {
      stripped += painted[i];
    }
  }
  EXPECT_NE(painted, plain);
  EXPECT_EQ(stripped, plain);
}

TEST(TerminalTrace, OfALongPromptLeavesWeakTokensOutAndSaysSo) {
  test::TraceShape shape;
  shape.texts.assign(300, " word");
  const std::string text = to_terminal(make_trace(shape), {});
  EXPECT_NE(text.find("252 tokens of smaller credit"), std::string::npos);
  EXPECT_LT(lines_of(text).size(), 120u);
}

TEST(TerminalTrace, OfARootShowsItsSourcesAndItsComposition) {
  const std::string text = to_terminal(make_trace({.rooted = true}), {});
  EXPECT_NE(text.find("Sources that make the output of A11.H1@13"), std::string::npos);
  EXPECT_NE(line_with(text, "  all  ").find("MLP0 1.5, emb 0.75"), std::string::npos);
}

TEST(TerminalAttribution, StaysWithinTheWidthForAnyPrompt) {
  rc::check([] {
    AttributeResult r;
    const int length = *rc::gen::inRange(2, 400);
    r.tokens =
        test::make_tokens(std::vector<std::string>(static_cast<std::size_t>(length), " word"));
    for (int p = std::max(0, length - 6); p < length; ++p) {
      AttributeRow row{p, 7, " averyveryverylongtoken", 0.5, {}, {}};
      for (int s = 0; s <= p; ++s) row.token_credit.push_back(std::sin(s));
      r.rows.push_back(row);
    }
    const TerminalStyle style{.color = false,
                              .width = *rc::gen::inRange(40, 140),
                              .unicode = *rc::gen::arbitrary<bool>()};
    for (const std::string& line : lines_of(to_terminal(r, style))) {
      if (report::display_width(line) > style.width) RC_FAIL(line);
    }
  });
}

TEST(TerminalOthers, ShowPredictionsLensInteractionsAndAttributions) {
  PredictResult predict;
  predict.tokens = test::make_tokens({"a", "b"});
  predict.log_probability = {std::nullopt, -0.6931471805599453};
  predict.predictions = {{7, " c", 2.5, 0.25}};
  predict.lens = {predict.predictions, predict.predictions};
  const std::string predicted = to_terminal(predict, {});
  EXPECT_NE(predicted.find("perplexity 2.000"), std::string::npos);
  EXPECT_NE(predicted.find("layer 0"), std::string::npos);

  InteractionResult interactions;
  interactions.writers = {"emb", "A0.H0", "MLP0"};
  interactions.attention = {{1, -1, 0, 0.5}};
  interactions.mlp = {{2, -1, 0, 1}, {2, -1, 1, 3}};
  const std::string strongest = to_terminal(interactions, {});
  EXPECT_LT(strongest.find("A0.H0 -> MLP0"), strongest.find("emb -> MLP0"));

  AttributeResult attribute;
  attribute.tokens = test::make_tokens({"a", "b", "c"});
  attribute.rows = {{1, 102, "c", 0.5, {0.25, -0.05}, {100, -20}}};
  const std::string attributed = to_terminal(attribute, {});
  EXPECT_NE(attributed.find("\"c\" at position 2, probability 50.0%"), std::string::npos);
  EXPECT_NE(attributed.find("\"a\"@0 +100.0%"), std::string::npos);
}

}  // namespace
}  // namespace unpack
