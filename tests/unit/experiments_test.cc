// What stands behind the experiments: files of text, generated prompts, records that survive an
// interruption, plots.
#include "unpack/experiments.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "experiments/plots.h"
#include "experiments/records.h"
#include "experiments/text_data.h"
#include "unit/temp_folder.h"
#include "unpack/error.h"

namespace unpack {
namespace {

class Experiments : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return temporary_.write(name, text);
  }
  static std::string read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  const test::TempFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(Experiments, ABadLineIsSkippedWithItsNumber) {
  const experiments::TextFile got =
      experiments::read_text(write("text", "# remark\nfirst\n\nbad \xff line\r\nlast\r\n"), false);
  ASSERT_EQ(got.lines.size(), 2U);
  EXPECT_EQ(got.lines[1].line, 5);
  EXPECT_EQ(got.lines[1].text, "last");
  ASSERT_EQ(got.problems.size(), 1U);
  EXPECT_NE(got.problems[0].find("line 4"), std::string::npos);
}

TEST_F(Experiments, ABadLineStopsWhereThatIsAsked) {
  const auto file = write("text", "first\nbad \xff line\n");
  try {
    experiments::read_text(file, true);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos);
  }
}

TEST_F(Experiments, AFileWithoutUsableLinesIsAnError) {
  EXPECT_THROW(experiments::read_text(write("text", "# only remarks\n\n"), false), InputError);
  EXPECT_THROW(experiments::read_text(folder_ / "absent", false), InputError);
}

TEST_F(Experiments, RecordsAreFoundAgainAndAHalfWrittenOneIsDropped) {
  const auto file = folder_ / "results.jsonl";
  {
    experiments::Records records(file, {{"n", 2}});
    records.add("a", {{"x", 0.1}});
  }
  const std::string whole = read(file);
  std::ofstream(file, std::ios::app) << R"({"key":"b","x":)";
  experiments::Records records(file, {{"n", 2}});
  ASSERT_NE(records.find("a"), nullptr);
  EXPECT_EQ(records.find("a")->at("x").get<double>(), 0.1);
  EXPECT_EQ(records.find("b"), nullptr);
  EXPECT_EQ(read(file), whole);
}

TEST_F(Experiments, RecordsOfOtherSettingsAreNotMixed) {
  const auto file = folder_ / "results.jsonl";
  { experiments::Records records(file, {{"n", 2}}); }
  EXPECT_THROW(experiments::Records(file, {{"n", 3}}), InputError);
}

TEST_F(Experiments, IoiPromptsNameTheirTokens) {
  const Model model = Model::load("pocket-gpt2");
  for (const experiments::IoiPrompt& p : experiments::ioi_prompts(model, 20, 1, false)) {
    EXPECT_EQ(p.ids[p.s1] == p.ids[p.io_position], false);
    EXPECT_NE(model.token_text(p.ids[p.s2]).find(p.s), std::string::npos) << p.text;
    EXPECT_LT(p.s1, p.s2);
    EXPECT_EQ(p.kind == "ABBA", p.io_position < p.s1);
  }
  for (const experiments::IoiPrompt& p : experiments::ioi_prompts(model, 20, 1, true)) {
    EXPECT_NE(model.token_text(p.ids[p.s2]).find(p.third), std::string::npos) << p.text;
    EXPECT_NE(p.third, p.s);
  }
}

TEST_F(Experiments, PromptsDependOnTheSeedAlone) {
  const Model model = Model::load("pocket-gpt2");
  const auto a = experiments::ioi_prompts(model, 5, 7, false),
             b = experiments::ioi_prompts(model, 5, 7, false),
             c = experiments::ioi_prompts(model, 5, 8, false);
  bool differs = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].text, b[i].text);
    differs |= a[i].text != c[i].text;
  }
  EXPECT_TRUE(differs);
}

TEST_F(Experiments, AnInterruptedRunEndsWithTheSameResult) {
  ExperimentOptions options;
  options.name = "suppression";
  options.n = 3;
  options.seed = 4;
  options.out = folder_ / "whole";
  const std::string whole = run_experiment(options).report;
  // Cut after the second line: settings and one record are left, and half of another.
  std::string records = read(options.out / "results.jsonl");
  const std::size_t second = records.find('\n', records.find('\n') + 1);
  options.out = folder_ / "resumed";
  std::filesystem::create_directories(options.out);
  std::ofstream(options.out / "results.jsonl", std::ios::binary) << records.substr(0, second + 40);
  EXPECT_EQ(run_experiment(options).report, whole);
  EXPECT_EQ(read(options.out / "summary.json"), read(folder_ / "whole" / "summary.json"));
  EXPECT_EQ(read(options.out / "results.jsonl"), records);
}

TEST_F(Experiments, BadOptionsAreUsageErrors) {
  ExperimentOptions options;
  options.out = folder_;
  options.name = "nothing";
  EXPECT_THROW(run_experiment(options), UsageError);
  options.name = "sink";
  options.n = 0;
  EXPECT_THROW(run_experiment(options), UsageError);
}

TEST(Plots, LongNamesOfBarsStayInThePicture) {
  const std::vector<std::string> names = {"a", "composition mass x reader's credit, paper", "b"};
  const std::string plain = experiments::bar_plot("t", "y", {"a", "b"}, {{"s", {1, 2}, {}}}),
                    leaning = experiments::bar_plot("t", "y", names, {{"s", {1, 2, 3}, {}}});
  EXPECT_EQ(plain.find("rotate(-40"), std::string::npos);
  EXPECT_NE(plain.find("height=\"490\""), std::string::npos);
  EXPECT_NE(leaning.find("rotate(-40"), std::string::npos);  // all of them, "a" as well
  EXPECT_EQ(leaning.find("text-anchor=\"middle\">a<"), std::string::npos);
  // At the far left of many bars the same name has less room, so that it is turned further and the
  // picture grows.
  std::vector<std::string> many(13, "x");
  many[0] = names[1];
  const std::string crowded =
      experiments::bar_plot("t", "y", many, {{"s", std::vector<double>(13, 1.0), {}}});
  EXPECT_EQ(crowded.find("rotate(-40"), std::string::npos);
  EXPECT_EQ(crowded.find("height=\"490\""), std::string::npos);
}

TEST(Plots, PointsWithoutALogarithmAreDrawnAtTheEdge) {
  const std::string svg = experiments::scatter_plot(
      "t", "x", "y", {{1, 2, 0, "a"}, {10, -1, 1, "b"}, {0, 5, 2, "c < d"}});
  std::size_t circles = 0;
  for (std::size_t at = svg.find("<circle"); at != std::string::npos;
       at = svg.find("<circle", at + 1))
    ++circles;
  EXPECT_EQ(circles, 3U);
  EXPECT_NE(svg.find("c &lt; d"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace unpack
