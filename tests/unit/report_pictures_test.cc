#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "report/figure.h"
#include "report/graph_layout.h"
#include "report/text.h"
#include "test_paths.h"
#include "unit/report_fixture.h"
#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using report::GraphBox;
using report::GraphLayout;
using report::Point;
using test::make_trace;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size()))
    ++n;
  return n;
}

// Texts that break careless writers.
const std::vector<std::string> kNastyTexts = {"<|endoftext|>",
                                              "</script><b>",
                                              " \"quoted\" & 'single'",
                                              "\n\n",
                                              "\t",
                                              " 中文",
                                              "é",
                                              "\\begin{x}$%#_^~{}",
                                              "]]>",
                                              "--",
                                              "\x01\x1b",
                                              "\xff",
                                              "",
                                              " "};

test::TraceShape nasty() {
  test::TraceShape shape;
  shape.texts = kNastyTexts;
  shape.paths = 60;
  return shape;
}

AttributeResult nasty_attribution() {
  AttributeResult r;
  r.tokens = test::make_tokens(kNastyTexts);
  for (int p = 3; p < 14; ++p) {
    AttributeRow row{p, 7, kNastyTexts[(p + 1) % 14], 0.5, {}, {}};
    for (int s = 0; s <= p; ++s) row.token_credit.push_back(s % 3 ? 0.1 * s : -0.2 * s);
    row.token_percent.assign(row.token_credit.size(), 7.0);
    r.rows.push_back(row);
  }
  return r;
}

InteractionResult all_interactions(int layers, int heads) {
  TraceResult shape = make_trace({.layers = layers, .heads = heads});
  const Writers writers = shape.writer_table();
  InteractionResult r;
  r.writers = shape.writers;
  for (int l = 0; l < layers; ++l) {
    for (int h = 0; h < heads; ++h) {
      for (int w = 0; w < writers.visible_to_attention(l); ++w)
        r.attention.push_back({writers.head(l, h), -1, w, 1.0 / (1 + h + w)});
    }
    for (int w = 0; w < writers.visible_to_mlp(l); ++w)
      r.mlp.push_back({writers.mlp(l), -1, w, 1.0 / (1 + w)});
  }
  return r;
}

TEST(GraphPicture, NoLineRunsThroughABoxAndNoBoxesOverlap) {
  rc::check([] {
    test::TraceShape shape;
    shape.paths = *rc::gen::inRange<std::size_t>(0, 200);
    shape.rooted = *rc::gen::arbitrary<bool>();
    shape.gated = *rc::gen::arbitrary<bool>();
    shape.layers = *rc::gen::inRange(2, 13);
    shape.texts.assign(*rc::gen::inRange<std::size_t>(1, 60), " word");
    const TraceResult r = make_trace(shape);
    const GraphLayout g = report::layout_graph(r);
    RC_ASSERT(g.drawn.size() + g.left_out == r.paths.size());
    for (std::size_t i = 0; i < g.boxes.size(); ++i) {
      const GraphBox& a = g.boxes[i];
      RC_ASSERT(a.x - a.w / 2 >= 0 && a.x + a.w / 2 <= g.width && a.y - a.h / 2 >= 0 &&
                a.y + a.h / 2 <= g.height);
      for (std::size_t j = 0; j < i; ++j) {
        const GraphBox& b = g.boxes[j];
        RC_ASSERT(std::abs(a.x - b.x) >= (a.w + b.w) / 2 || std::abs(a.y - b.y) >= (a.h + b.h) / 2);
      }
    }
    for (const auto& line : g.lines) {
      for (std::size_t i = 1; i < line.points.size(); ++i) {
        const Point p = line.points[i - 1], q = line.points[i];
        RC_ASSERT(std::abs(p.x - q.x) < 0.51 || std::abs(p.y - q.y) < 0.51);
        for (const GraphBox& box : g.boxes) {
          const double margin = 0.6;
          const bool inside = std::max(p.x, q.x) > box.x - box.w / 2 + margin &&
                              std::min(p.x, q.x) < box.x + box.w / 2 - margin &&
                              std::max(p.y, q.y) > box.y - box.h / 2 + margin &&
                              std::min(p.y, q.y) < box.y + box.h / 2 - margin;
          RC_ASSERT(!inside);
        }
      }
    }
  });
}

TEST(GraphPicture, TellsSignByColourAndPositionByDashes) {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path within, across;
  within.nodes = {{0, 13}, {writers.mlp(2), 13}};
  within.branches = {Branch::none, Branch::mlp};
  within.credit = 1;
  across.nodes = {{0, 3}, {writers.head(4, 1), 13}};
  across.branches = {Branch::none, Branch::K};
  across.credit = -0.5;
  r.paths = {within, across};
  const std::string svg = to_svg(r);
  EXPECT_EQ(count(svg, "class=\"r cP edge\""), 2u);
  EXPECT_EQ(count(svg, "class=\"r cN edge dash\""), 1u) << "emb@3 to the head";
  EXPECT_EQ(count(svg, "class=\"r cN edge\""), 1u) << "the head to the target";
  EXPECT_NE(svg.find(">K</text>"), std::string::npos);
  EXPECT_NE(svg.find("emb@3 &quot;John&quot; -[K]-&gt; A4.H1@13 -&gt; target"), std::string::npos);
}

TEST(GraphPicture, AddsUpThePathsThatShareAnEdge) {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path a, b;
  a.nodes = {{0, 3}, {writers.head(4, 1), 13}};
  a.branches = {Branch::none, Branch::K};
  a.credit = 0.5;
  b = a;
  b.nodes.push_back({writers.mlp(5), 13});
  b.branches.push_back(Branch::mlp);
  b.credit = -0.125;
  r.paths = {b, a};
  const GraphLayout g = report::layout_graph(r);
  ASSERT_EQ(g.lines.size(), 4u);
  EXPECT_EQ(g.lines[0].credit, 0.375) << "emb@3 to the head, by both";
  EXPECT_EQ(g.lines[0].paths, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(g.lines[0].width, 5);
  EXPECT_NEAR(g.lines[1].width, 5 * std::sqrt(0.5 / 0.625), 1e-12) << "the head to the target";
  ASSERT_EQ(g.boxes[1].label, "emb");
  ASSERT_EQ(g.boxes[2].label, "A4.H1");
  ASSERT_EQ(g.boxes[2].ports.size(), 3u);
  EXPECT_TRUE(g.boxes[2].ports[0].used);
  EXPECT_FALSE(g.boxes[2].ports[1].used || g.boxes[2].ports[2].used);
}

TEST(GraphPicture, OfALongPromptFoldsTheTokensThatNoRouteTouches) {
  TraceResult r = make_trace({.texts = std::vector<std::string>(40, " word")});
  const Writers writers = r.writer_table();
  Path path;
  path.nodes = {{0, 10}, {writers.head(4, 1), r.target.position}};
  path.branches = {Branch::none, Branch::V};
  path.credit = 1;
  r.paths = {path};
  const GraphLayout g = report::layout_graph(r);
  int shown = 0;
  for (const report::GraphColumn& column : g.columns) shown += column.count;
  EXPECT_EQ(shown, 40);
  EXPECT_EQ(g.columns[0].count, 10);
  EXPECT_EQ(g.columns[1].position, 10);
  EXPECT_LE(g.columns.size(), 5u);
}

TEST(Figure, WritesNumbersAsThePageDoes) {
  using report::figure_number;
  EXPECT_EQ(figure_number(0.0049, 2), "0.0049");
  EXPECT_EQ(figure_number(-0.45, 2), "−0.45");
  EXPECT_EQ(figure_number(0.996, 2), "1");
  EXPECT_EQ(figure_number(8.82, 3), "8.82");
  EXPECT_EQ(figure_number(1234, 2), "1234");
  EXPECT_EQ(figure_number(0.00001234, 3), "1.23e-5");
  EXPECT_EQ(figure_number(1234567, 3), "1.23e+6");
  EXPECT_EQ(figure_number(0, 2), "0");
  EXPECT_EQ(report::figure_signed(2.5, 2), "+2.5");
  EXPECT_EQ(report::figure_token(" a\n"), "·a⏎");
  EXPECT_EQ(report::figure_token("\xE2\x80"), "0xE2 0x80");
}

TEST(GraphPicture, OfAThousandPathsSaysWhatIsLeftOut) {
  const TraceResult r = make_trace({.paths = 1000});
  for (const std::string& picture : {to_svg(r), to_html(r), to_tikz(r)}) {
    EXPECT_NE(picture.find("750 more paths are not drawn."), std::string::npos);
    EXPECT_LT(picture.size(), 600000u);
  }
}

TEST(TracePicture, EscapesEveryToken) {
  const TraceResult r = make_trace(nasty());
  for (const std::string& picture :
       {to_svg(r), to_html(r), to_html(nasty_attribution()), to_svg(nasty_attribution())}) {
    EXPECT_EQ(picture.find("</script><b>"), std::string::npos);
    EXPECT_NE(picture.find("&lt;/script&gt;&lt;b&gt;"), std::string::npos);
    EXPECT_EQ(picture.find('\x1b'), std::string::npos);
    EXPECT_EQ(picture.find('\xff'), std::string::npos);
  }
}

TEST(TracePicture, OfABaselineShowsTokensAlone) {
  TraceResult r = make_trace();
  r.method = "attnlrp";
  for (const std::string& picture : {to_svg(r), to_html(r)}) {
    EXPECT_NE(picture.find("attnlrp"), std::string::npos);
    EXPECT_EQ(picture.find("Layers and heads"), std::string::npos);
    EXPECT_EQ(picture.find("Coverage"), std::string::npos);
  }
}

TEST(TracePicture, HasNoGraphWithoutPaths) {
  const TraceResult r = make_trace({.paths = 0});
  EXPECT_EQ(to_svg(r).find("Strongest paths"), std::string::npos);
  EXPECT_EQ(to_html(r).find("<script>"), std::string::npos);
}

TEST(InteractionPicture, OfAHugeModelIsDrawnByLayer) {
  EXPECT_EQ(to_svg(all_interactions(12, 12)).find("strongest pair of heads"), std::string::npos);
  const std::string huge = to_svg(all_interactions(24, 16));
  EXPECT_NE(huge.find("strongest pair of heads"), std::string::npos);
  EXPECT_LT(huge.size(), 200000u);
}

TEST(TexEscape, LeavesNothingThatTexWouldObey) {
  EXPECT_EQ(report::tex_escape("50% & $_{x}#"), "50\\% \\& \\$\\_\\{x\\}\\#");
  EXPECT_EQ(report::tex_escape("\\^~"), "\\textbackslash{}\\textasciicircum{}\\textasciitilde{}");
  EXPECT_EQ(report::tex_escape("中"), "{\\tiny U+4E2D}");
  EXPECT_EQ(report::tex_escape("é"), "é");
  EXPECT_EQ(report::tex_escape("·a −1 ≈ ⏎"),
            "\\ensuremath{\\cdot}a \\ensuremath{-}1 \\ensuremath{\\approx} "
            "\\ensuremath{\\hookleftarrow}");
}

TEST(GraphFile, FormatFollowsTheSuffix) {
  EXPECT_EQ(graph_format("a/b.graphml"), GraphFormat::graphml);
  EXPECT_EQ(graph_format("b.DOT"), GraphFormat::dot);
  EXPECT_EQ(graph_format("b.json"), GraphFormat::json);
  EXPECT_THROW(graph_format("b.png"), UsageError);
  EXPECT_THROW(graph_format("b"), UsageError);
}

TEST(GraphFile, AddsUpThePathsThatShareAnEdge) {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path a, b;
  a.nodes = {{0, 3}, {writers.head(4, 1), 13}};
  a.branches = {Branch::none, Branch::K};
  a.credit = 0.5;
  b = a;
  b.nodes.push_back({writers.mlp(5), 13});
  b.branches.push_back(Branch::mlp);
  b.credit = -0.125;
  r.paths = {a, b};
  const std::string dot = to_graph(r, GraphFormat::dot);
  EXPECT_NE(
      dot.find("\"emb@3\" -> \"A4.H1@13\" [label=\"K\", branch=\"K\", credit=\"0.375\", paths=2"),
      std::string::npos)
      << dot;
  EXPECT_NE(
      dot.find("\"MLP5@13\" -> \"target\" [label=\"\", branch=\"\", credit=\"-0.125\", paths=1"),
      std::string::npos)
      << dot;
}

TEST(Pictures, AreReadByTheProgramsPeopleUse) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("unpack-pictures-" + std::to_string(std::rand()) + "-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const TraceResult plain = make_trace(), rooted = make_trace({.rooted = true, .gated = true}),
                    broken = make_trace(nasty());
  write_file(folder / "plain.svg", to_svg(plain));
  write_file(folder / "rooted.svg", to_svg(rooted));
  write_file(folder / "nasty.svg", to_svg(broken));
  write_file(folder / "interactions.svg", to_svg(all_interactions(4, 4)));
  write_file(folder / "attribution.svg", to_svg(nasty_attribution()));
  write_file(folder / "plain.html", to_html(plain));
  write_file(folder / "nasty.html", to_html(broken));
  write_file(folder / "attribution.html", to_html(nasty_attribution()));
  write_file(folder / "plain.tex", to_tikz(plain));
  write_file(folder / "nasty.tex", to_tikz(broken));
  write_file(folder / "nasty.dot", to_graph(broken, GraphFormat::dot));
  write_file(folder / "graph.graphml", to_graph(broken, GraphFormat::graphml));
  write_file(folder / "graph.json", to_graph(broken, GraphFormat::json));
  if (std::system("python3 -c pass") != 0)
    GTEST_SKIP() << "python3 is not there to read the pictures";
  // The system's python is the one that Debian's networkx belongs to.
  const std::string python =
      std::filesystem::exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3";
  const std::string command =
      python + " " UNPACK_SOURCE_DIR "/tests/pictures/check.py " + folder.string();
  EXPECT_EQ(std::system(command.c_str()), 0) << "see " << folder;
  if (!HasFailure()) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace unpack
