// A circuit as a picture: layers upward, a box a component with a port a branch, lines as wide as
// their credit, and beside each what was measured without it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/labels.h"
#include "report/svg_canvas.h"
#include "unpack/circuit.h"

namespace unpack {

namespace {

using namespace report;

constexpr double kComponentHeight = 30, kRowGap = 66, kColumnGap = 34, kCircuitMargin = 24,
                 kPort = 22, kBulge = 60;
constexpr std::size_t kDrawn = 80, kLabelled = 40;

struct CircuitBox {
  int writer = -1;  // -1: the target
  std::string name;
  std::vector<Branch> ports;
  double x = 0, y = 0, w = 0;  // centre of the bottom line, and width
};

// From below: tokens, then a row of heads and a row of the MLP a layer, then the target.
int component_row(const Writers& writers, int writer, int layers) {
  if (writer < 0) return 2 * layers + 1;
  const Writer& w = writers[writer];
  if (w.terminal()) return 0;
  return 1 + 2 * w.layer + (w.kind == WriterKind::mlp ? 1 : 0);
}

class CircuitPicture {
 public:
  explicit CircuitPicture(const CircuitResult& r) : r_(r), writers_(r.writer_table()) {
    for (const RankedEdge& e : r.edges) {
      if (!e.kept) continue;
      ++kept_;
      if (edges_.size() < kDrawn) edges_.push_back(&e);
    }
    for (const RankedEdge* e : edges_) {
      largest_ = std::max(largest_, e->absolute);
      for (const int w : {e->edge.writer, e->edge.reader})
        rows_[component_row(writers_, w, layers())].try_emplace(w);
      CircuitBox& reader = box(e->edge.reader);
      const auto there = std::find(reader.ports.begin(), reader.ports.end(), e->edge.branch);
      if (has_branch_name(e->edge.branch) && there == reader.ports.end())
        reader.ports.push_back(e->edge.branch);
    }
  }

  std::string draw() {
    place();
    SvgCanvas canvas;
    canvas.text(kCircuitMargin, 26, title(), "b");
    canvas.text(kCircuitMargin, 44, subtitle(), "small soft");
    // Weak lines first, so that the strongest lie on top.
    for (auto e = edges_.rbegin(); e != edges_.rend(); ++e) draw_edge(canvas, **e);
    for (const auto& [row, boxes] : rows_) {
      for (const auto& [w, b] : boxes) draw_box(canvas, b);
    }
    for (std::size_t i = 0; i < std::min(edges_.size(), kLabelled); ++i)
      draw_drop(canvas, *edges_[i]);
    return canvas.document(width_, height_, title());
  }

 private:
  int layers() const { return r_.layout.n_layers; }
  CircuitBox& box(int writer) {
    return rows_.at(component_row(writers_, writer, layers())).at(writer);
  }

  std::string title() const {
    return fmt::format("{} on {}: {} of {} edges", r_.task.name, r_.model.name,
                       r_.final_point.edges, r_.all_edges);
  }
  std::string subtitle() const {
    std::string text = "numbers: what faithfulness loses without the edge";
    if (std::isfinite(r_.final_point.faithfulness))  // of what was put together nothing is known
      text = fmt::format("faithfulness {:.2f}, necessity {:.2f}; {}", r_.final_point.faithfulness,
                         r_.final_point.necessity, text);
    if (kept_ > edges_.size())
      text += fmt::format("; the strongest {} edges are drawn", edges_.size());
    return text;
  }

  void place() {
    double widest = 0;
    for (auto& [row, boxes] : rows_) {
      double width = 0;
      for (auto& [w, b] : boxes) {
        b.writer = w;
        b.name = w < 0 ? "target" : writers_.name(w);
        std::sort(b.ports.begin(), b.ports.end());
        b.w = std::max({text_width(b.name, 12) + 16, 8 + kPort * b.ports.size(), 54.0});
        width += b.w + kColumnGap;
      }
      widest = std::max(widest, width - kColumnGap);
    }
    // A column a head, those of all layers above each other, and one for the MLPs; tokens and the
    // target stand in the middle.
    std::map<int, double> columns;
    for (const auto& [row, boxes] : rows_) {
      for (const auto& [w, b] : boxes) {
        if (w >= 0 && !writers_[w].terminal()) {
          double& width = columns[column_of(w)];
          width = std::max(width, b.w);
        }
      }
    }
    double x = kCircuitMargin;
    std::map<int, double> centres;
    for (const auto& [column, width] : columns) {
      centres[column] = x + width / 2;
      x += width + kColumnGap;
    }
    width_ = std::max({widest + 2 * kCircuitMargin, x - kColumnGap + kBulge + kCircuitMargin,
                       text_width(subtitle(), 11) + 2 * kCircuitMargin});
    const double shift = (width_ - kBulge - (x - kColumnGap + kCircuitMargin)) / 2;
    height_ = 80 + rows_.size() * (kComponentHeight + kRowGap) - kRowGap + 24;
    double y = height_ - 24;
    for (auto& [row, boxes] : rows_) {
      double total = -kColumnGap;
      for (const auto& [w, b] : boxes) total += b.w + kColumnGap;
      double middle = (width_ - total) / 2;
      for (auto& [w, b] : boxes) {
        const bool free = w < 0 || writers_[w].terminal();
        b.x = free ? middle + b.w / 2 : shift + centres[column_of(w)];
        b.y = y;
        middle += b.w + kColumnGap;
      }
      y -= kComponentHeight + kRowGap;
    }
    for (const RankedEdge* e : edges_) {
      ++written_[e->edge.writer];
      ++read_[e->edge.reader];
    }
  }

  int column_of(int writer) const {
    const Writer& w = writers_[writer];
    return w.kind == WriterKind::head ? w.head : r_.layout.n_heads;
  }

  Point port(const CircuitEdge& edge) {
    const CircuitBox& b = box(edge.reader);
    if (!has_branch_name(edge.branch)) return {b.x, b.y};
    const auto at = std::find(b.ports.begin(), b.ports.end(), edge.branch) - b.ports.begin();
    const double n = b.ports.size();
    return {b.x + kPort * (at - (n - 1) / 2), b.y + 6};
  }

  // Where the line is at t of its way, 0 at the writer.
  Point on_line(const CircuitEdge& edge, double t) {
    const CircuitBox& from = box(edge.writer);
    const Point a{from.x, from.y - kComponentHeight}, d = port(edge);
    const double bend = std::max(24.0, 0.4 * (a.y - d.y));
    // Past the boxes in between, where a line would run through them.
    const double side = std::fabs(a.x - d.x) < 30 && a.y - d.y > 2 * kRowGap ? kBulge : 0;
    const Point b{a.x + side, a.y - bend}, c{d.x + side, d.y + bend};
    const double u = 1 - t;
    const auto mix = [&](double pa, double pb, double pc, double pd) {
      return u * u * u * pa + 3 * u * u * t * pb + 3 * u * t * t * pc + t * t * t * pd;
    };
    return {mix(a.x, b.x, c.x, d.x), mix(a.y, b.y, c.y, d.y)};
  }

  void draw_edge(SvgCanvas& canvas, const RankedEdge& e) {
    std::vector<Point> points;
    for (int i = 0; i <= 24; ++i) points.push_back(on_line(e.edge, i / 24.0));
    canvas.open_group(" class=\"edge\"");
    canvas.raw(tooltip(fmt::format("{}: credit {}, rank {}{}", to_string(writers_, e.edge),
                                   signed_number(e.credit), e.rank,
                                   e.drop ? ", drop " + signed_number(*e.drop) : "")));
    canvas.route(points, e.credit < 0 ? "cN" : "cP",
                 0.8 + (largest_ > 0 ? 5 * e.absolute / largest_ : 0), " style=\"opacity:.6\"");
    canvas.close_group();
  }

  void draw_box(SvgCanvas& canvas, const CircuitBox& b) {
    canvas.rect(b.x - b.w / 2, b.y - kComponentHeight, b.w, kComponentHeight,
                b.writer < 0 ? "box mark" : "box", {}, 5);
    canvas.text(b.x, b.y - kComponentHeight / 2 + (b.ports.empty() ? 4 : 0), b.name, "m ink b",
                " style=\"font-size:12px\"");
    const double n = b.ports.size();
    for (std::size_t i = 0; i < b.ports.size(); ++i) {
      const double x = b.x + kPort * (i - (n - 1) / 2);
      canvas.rect(x - 8, b.y - 7, 16, 13, "box", {}, 3);
      canvas.text(x, b.y + 3, to_string(b.ports[i]), "m tiny ink");
    }
  }

  // At the end where fewer lines meet; there labels take turns, so that those of neighbours stay
  // apart.
  void draw_drop(SvgCanvas& canvas, const RankedEdge& e) {
    if (!e.drop) return;
    const bool near_writer = written_[e.edge.writer] < read_[e.edge.reader];
    constexpr double kPlaces[] = {0.16, 0.26, 0.36, 0.21, 0.31};
    const int turn = near_writer ? out_turns_[e.edge.writer]++ : in_turns_[e.edge.reader]++;
    const double t = kPlaces[turn % 5];
    const Point at = on_line(e.edge, near_writer ? t : 1 - t);
    canvas.text(at.x, at.y, fmt::format("{:.3f}", *e.drop), "m tiny ink halo");
  }

  const CircuitResult& r_;
  Writers writers_;
  std::vector<const RankedEdge*> edges_;  // kept and drawn, strongest first
  std::size_t kept_ = 0;
  std::map<int, std::map<int, CircuitBox>> rows_;
  std::map<int, int> written_, read_, out_turns_, in_turns_;
  double largest_ = 0, width_ = 0, height_ = 0;
};

}  // namespace

std::string to_svg(const CircuitResult& result) {
  const CircuitResult shown = without_positions(result);
  return CircuitPicture(shown).draw();
}

}  // namespace unpack
