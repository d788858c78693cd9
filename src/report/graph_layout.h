// Where the nodes and lines of a path graph go: tokens along the bottom, layers upward, K, Q and V
// as ports under a box, a line for every edge that routes share. SVG, HTML and TikZ draw the same
// layout, and so does the page (web/src/graph_layout.ts, number for number; a test compares them).
// y grows downward.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/svg_canvas.h"
#include "unpack/result.h"

namespace unpack::report {

inline constexpr double kBoxHeight = 22, kPortSize = 11;

struct GraphPort {
  const char* branch = "";  // K, Q, V, G, U, R
  double x = 0;             // from the box's centre
  bool used = false;
};

struct GraphBox {
  Node node;
  bool target = false;  // the extra node at the top of a trace that has no root
  bool root = false;
  std::string label;
  double x = 0, y = 0, w = 0, h = 0;  // centre and size, without its ports
  double credit = 0;
  std::vector<GraphPort> ports;
  std::vector<std::size_t> paths;  // ranks of the drawn paths through it
};

// What the drawn paths add up to between two nodes, by one branch.
struct GraphLine {
  std::vector<Point> points;
  double credit = 0;  // with its sign
  double width = 1;
  bool thin = false;     // one of the many weak ones, which share lanes
  bool crosses = false;  // from one position to another
  std::vector<std::size_t> paths;
};

struct GraphColumn {
  int position = -1;  // of a fold: its first
  int count = 1;      // more: that many tokens folded
  double x = 0, w = 0;
  std::string label;
};

struct LayerBand {
  int layer = 0;
  double top = 0, bottom = 0;
};

struct DrawnPath {
  std::size_t index = 0;  // in TraceResult::paths
  double width = 1;
};

struct GraphLayout {
  double width = 0, height = 0;
  double tokens_y = 0;           // baseline of the token labels
  std::vector<DrawnPath> drawn;  // the strongest first; a rank is a place in this list
  std::size_t left_out = 0;
  std::vector<GraphColumn> columns;
  std::vector<LayerBand> bands;
  std::vector<GraphBox> boxes;
  std::vector<GraphLine> lines;  // the heaviest first
  double largest_credit = 0;     // of a box
};

struct GraphLimits {
  std::size_t drawn = 250;      // paths; further ones are left out
  std::size_t strong = 80;      // edges with lanes of their own; weaker ones share
  std::size_t all_tokens = 16;  // prompts up to this length show every token
  std::size_t fold = 3;         // unused tokens in a row that fold, in longer ones
};

GraphLayout layout_graph(const TraceResult& result, const GraphLimits& limits = {});

}  // namespace unpack::report
