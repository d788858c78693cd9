// Where the nodes and lines of a path graph go: tokens along the bottom, layers upward, a line of
// its own for every path. SVG, HTML and TikZ draw the same layout. y grows downward.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/svg_canvas.h"
#include "unpack/result.h"

namespace unpack::report {

struct GraphBox {
  Node node;
  bool target = false;  // the extra node at the top of a trace that has no root
  bool root = false;
  std::string label;
  double x = 0, y = 0, w = 0, h = 0;  // centre and size
  double credit = 0;
  std::vector<std::size_t> paths;  // ranks of the drawn paths through it
};

// From one node of a path to the next; the part within the source's position is solid, the part
// across positions dashed.
struct GraphLine {
  std::size_t rank = 0;
  std::vector<Point> solid, dashed;
};

struct HopMark {
  std::string text;  // K, Q, V, G, U, R under the node that reads
  Point at;
  std::vector<std::size_t> paths;
};

struct GraphColumn {
  int position = -1;  // -1: tokens left out here
  double x = 0, w = 0;
  std::string label;
};

struct LayerBand {
  int layer = 0;
  double top = 0, bottom = 0;
};

struct DrawnPath {
  std::size_t index = 0;  // in TraceResult::paths
  bool thin = false;
  int shade = 0;
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
  std::vector<GraphLine> lines;
  std::vector<HopMark> marks;
  double largest_credit = 0;  // of a box
};

struct GraphLimits {
  std::size_t strong = 20;      // drawn in a colour and width of their own
  std::size_t drawn = 40;       // the rest of these are thin
  std::size_t all_tokens = 24;  // prompts up to this length show every token
  std::size_t columns = 18;     // of longer ones, positions that may be shown
};

GraphLayout layout_graph(const TraceResult& result, const GraphLimits& limits = {});

}  // namespace unpack::report
