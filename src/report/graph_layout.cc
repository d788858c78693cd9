#include "report/graph_layout.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "report/graph_slots.h"
#include "report/text.h"

namespace unpack::report {
namespace {

constexpr double kPortStep = 15, kLaneStep = 6, kTrackStep = 6, kSideMargin = 12, kTokenRoom = 46,
                 kTopRoom = 10, kCellGap = 10;

// An edge between two boxes: all drawn paths that take it by this branch.
struct Step {
  std::size_t from = 0, to = 0;
  Branch branch = Branch::none;
  double credit = 0, mass = 0;
  std::vector<std::size_t> paths;
  std::size_t from_row = 0, to_row = 0;  // places among the used rows
  std::size_t column = 0;                // of `from`
  bool crosses = false, thin = false;
  Interval *lane = nullptr, *jog = nullptr, *approach = nullptr;
  double out_x = 0, in_x = 0, lane_x = 0;

  double trunk_x() const { return lane ? lane_x : out_x; }  // where it climbs
};

class Builder {
 public:
  Builder(const TraceResult& result, const GraphLimits& limits)
      : r_(result), writers_(result.writer_table()), limits_(limits) {}

  GraphLayout build() {
    choose_paths();
    make_steps();
    make_ports();
    make_columns();
    fill_cells();
    find_lanes();
    place_columns();
    place_ports();
    place_rows();
    make_bands();
    draw_lines();
    return std::move(g_);
  }

 private:
  using BoxKey = std::pair<int, int>;  // writer, position; writer -1: the target
  static constexpr int kTargetWriter = -1;

  int row_of(const GraphBox& box) const {
    if (box.target) return 1 + 2 * r_.layout.n_layers;
    const Writer& w = writers_[box.node.writer];
    return w.terminal() ? 0 : 1 + 2 * w.layer + (w.kind == WriterKind::mlp ? 1 : 0);
  }

  int position_of(std::size_t box) const { return g_.boxes[box].node.position; }

  void choose_paths() {
    std::vector<std::size_t> order(r_.paths.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(r_.paths[a].credit) > std::abs(r_.paths[b].credit);
    });
    order.resize(std::min(order.size(), limits_.drawn));
    const double largest = order.empty() ? 0 : std::abs(r_.paths[order.front()].credit);
    for (const std::size_t index : order)
      g_.drawn.push_back({index, line_width(std::abs(r_.paths[index].credit), largest)});
    g_.left_out = r_.paths.size() - g_.drawn.size();
  }

  static double line_width(double mass, double largest) {
    return std::max(1.1, largest > 0 ? 5 * std::sqrt(mass / largest) : 0.0);
  }

  std::size_t box_at(BoxKey key) {
    const auto [found, fresh] = box_index_.try_emplace(key, g_.boxes.size());
    if (!fresh) return found->second;
    GraphBox box;
    box.node = {key.first, key.second};
    box.target = key.first == kTargetWriter;
    box.h = kBoxHeight;
    if (box.target) {
      box.label = clip(figure_token(r_.target.text), 14, true);
      if (r_.target.versus_text)
        box.label += " vs " + clip(figure_token(*r_.target.versus_text), 14, true);
    } else {
      box.root = r_.root == box.node;
      box.label = writers_.name(key.first);
      box.credit = r_.node_credit.at(key.first).at(key.second);
      if (!std::isfinite(box.credit)) box.credit = 0;
      g_.largest_credit = std::max(g_.largest_credit, std::abs(box.credit));
    }
    const bool terminal = !box.target && writers_[key.first].terminal();
    box.w = std::max(terminal ? 34.0 : 52.0, figure_width(box.label, 11) + 16);
    g_.boxes.push_back(std::move(box));
    return found->second;
  }

  BoxKey target_key() const { return {kTargetWriter, r_.target.position}; }

  // Paths that share an edge are drawn as one line: heaviest first.
  void make_steps() {
    struct Edge {
      BoxKey from, to;
      Step step;
    };
    std::vector<Edge> edges;
    std::map<std::tuple<BoxKey, BoxKey, Branch>, std::size_t> index;
    for (std::size_t rank = 0; rank < g_.drawn.size(); ++rank) {
      const Path& path = r_.paths[g_.drawn[rank].index];
      std::vector<std::pair<BoxKey, Branch>> stops;
      for (std::size_t i = 0; i < path.nodes.size(); ++i)
        stops.push_back({{path.nodes[i].writer, path.nodes[i].position},
                         i < path.branches.size() ? path.branches[i] : Branch::none});
      if (!r_.root) stops.push_back({target_key(), Branch::none});
      for (std::size_t i = 1; i < stops.size(); ++i) {
        const auto& [to, branch] = stops[i];
        const auto [found, fresh] =
            index.try_emplace({stops[i - 1].first, to, branch}, edges.size());
        if (fresh) {
          edges.push_back({stops[i - 1].first, to, {}});
          edges.back().step.branch = branch;
        }
        Step& step = edges[found->second].step;
        step.credit += path.credit;
        step.mass += std::abs(path.credit);
        step.paths.push_back(rank);
      }
    }
    std::stable_sort(edges.begin(), edges.end(),
                     [](const Edge& a, const Edge& b) { return a.step.mass > b.step.mass; });
    if (r_.root) {
      box_at({r_.root->writer, r_.root->position});
    } else {
      box_at(target_key());
    }
    for (Edge& edge : edges) {
      edge.step.from = box_at(edge.from);
      edge.step.to = box_at(edge.to);
      edge.step.thin = steps_.size() >= limits_.strong;
      edge.step.crosses = edge.from.second != edge.to.second;
      steps_.push_back(std::move(edge.step));
    }
    for (const Step& step : steps_) {
      for (const std::size_t end : {step.from, step.to}) {
        std::vector<std::size_t>& paths = g_.boxes[end].paths;
        paths.insert(paths.end(), step.paths.begin(), step.paths.end());
      }
    }
    for (GraphBox& box : g_.boxes) {
      std::sort(box.paths.begin(), box.paths.end());
      box.paths.erase(std::unique(box.paths.begin(), box.paths.end()), box.paths.end());
    }
  }

  // Every head shows its three ports; other boxes the branches that they are read through.
  void make_ports() {
    std::map<std::size_t, std::set<Branch>> used;
    for (const Step& step : steps_) used[step.to].insert(step.branch);
    for (std::size_t i = 0; i < g_.boxes.size(); ++i) {
      GraphBox& box = g_.boxes[i];
      const bool head = !box.target && writers_[box.node.writer].kind == WriterKind::head;
      std::vector<Branch> letters = {Branch::K, Branch::Q, Branch::V};
      if (!head) {
        letters.clear();
        for (const Branch branch : {Branch::G, Branch::R, Branch::U}) {
          if (used[i].contains(branch)) letters.push_back(branch);
        }
      }
      const double middle = (static_cast<double>(letters.size()) - 1) / 2;
      for (std::size_t k = 0; k < letters.size(); ++k)
        box.ports.push_back(
            {to_string(letters[k]), kPortStep * (k - middle), used[i].contains(letters[k])});
    }
  }

  static const GraphPort* port_of(const GraphBox& box, Branch branch) {
    for (const GraphPort& port : box.ports) {
      if (std::string_view(port.branch) == to_string(branch)) return &port;
    }
    return nullptr;
  }

  void make_columns() {
    std::set<int> used;
    for (const GraphBox& box : g_.boxes) used.insert(box.node.position);
    const bool folds = r_.tokens.size() > limits_.all_tokens;
    for (int position = 0; position < r_.length();) {
      int end = position;
      while (end < r_.length() && !used.contains(end)) ++end;
      if (folds && end - position >= static_cast<int>(limits_.fold)) {
        g_.columns.push_back({position, end - position, 0, 0, {}});
        position = end;
        continue;
      }
      column_of_[position] = g_.columns.size();
      const std::string& text = r_.tokens[position].text;
      g_.columns.push_back({position, 1, 0, 0, clip(figure_token(text), 16, true)});
      ++position;
    }
  }

  std::size_t column_of_box(std::size_t box) const { return column_of_.at(position_of(box)); }

  void fill_cells() {
    std::set<int> rows = {0};
    for (const GraphBox& box : g_.boxes) rows.insert(row_of(box));
    rows_.assign(rows.begin(), rows.end());
    std::vector<std::size_t> order(g_.boxes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto place = [&](std::size_t box) {
      if (g_.boxes[box].target) return 0;
      const Writer& writer = writers_[g_.boxes[box].node.writer];
      return writer.kind == WriterKind::pos ? 1 : std::max(0, writer.head);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    row_.resize(g_.boxes.size());
    for (const std::size_t box : order) {
      row_[box] =
          std::lower_bound(rows_.begin(), rows_.end(), row_of(g_.boxes[box])) - rows_.begin();
      cells_[{column_of_box(box), row_[box]}].push_back(box);
    }
    for (Step& step : steps_) {
      step.from_row = row_[step.from];
      step.to_row = row_[step.to];
      step.column = column_of_box(step.from);
    }
  }

  Interval* interval(double from, double to) {
    return &intervals_.emplace_back(Interval{from, to, 0});
  }

  static void widen(Interval& common, double from, double to) {
    common.from = std::min(common.from, from);
    common.to = std::max(common.to, to);
  }

  // A line that would run through boxes of its own column takes a lane beside them: left within a
  // position, right where it leaves. Weak ones share one.
  void find_lanes() {
    std::map<std::pair<std::size_t, bool>, std::vector<Interval*>> lanes;
    std::map<std::pair<std::size_t, bool>, Interval*> shared;
    for (Step& step : steps_) {
      bool blocked = false;
      for (std::size_t row = step.from_row + 1; row < step.to_row; ++row)
        blocked = blocked || cells_.contains({step.column, row});
      if (!blocked) continue;
      const std::pair key(step.column, step.crosses);
      const double from = step.from_row + 0.5, to = step.to_row - 0.5;
      if (step.thin) {
        Interval*& lane = shared[key];
        if (!lane) lane = interval(from, to);
        widen(*lane, from, to);
        step.lane = lane;
      } else {
        step.lane = interval(from, to);
        lanes[key].push_back(step.lane);
      }
    }
    for (const auto& [key, lane] : shared) lanes[key].push_back(lane);
    for (const auto& [key, intervals] : lanes) lane_count_[key] = assign_slots(intervals, 0.1);
  }

  int lanes_of(std::size_t column, bool crosses) const {
    const auto found = lane_count_.find({column, crosses});
    return found == lane_count_.end() ? 0 : found->second;
  }

  double cell_width(const std::vector<std::size_t>& boxes) const {
    double width = kCellGap * (boxes.size() - 1);
    for (const std::size_t box : boxes) width += g_.boxes[box].w;
    return width;
  }

  void place_columns() {
    std::vector<double> widths(g_.columns.size(), 0);
    for (const auto& [where, boxes] : cells_)
      widths[where.first] = std::max(widths[where.first], cell_width(boxes));
    double x = kSideMargin;
    for (std::size_t c = 0; c < g_.columns.size(); ++c) {
      GraphColumn& column = g_.columns[c];
      const double left = kLaneStep * lanes_of(c, false), right = kLaneStep * lanes_of(c, true);
      const double centre =
          std::max(widths[c], column.count > 1 ? 26.0 : figure_width(column.label, 12.5) + 14);
      column.w = left + centre + right + 14;
      column.x = x + 7 + left + centre / 2;
      x += column.w;
    }
    g_.width = x + kSideMargin;
    for (const auto& [where, boxes] : cells_) {
      double at = g_.columns[where.first].x - cell_width(boxes) / 2;
      for (const std::size_t box : boxes) {
        g_.boxes[box].x = at + g_.boxes[box].w / 2;
        at += g_.boxes[box].w + kCellGap;
      }
    }
    for (Step& step : steps_) {
      const double beside =
          widths[step.column] / 2 + 6 + kLaneStep * (step.lane ? step.lane->slot : 0);
      step.lane_x = g_.columns[step.column].x + (step.crosses ? beside : -beside);
    }
  }

  void place_ports() {
    std::map<std::size_t, std::vector<Step*>> leaving;
    std::map<std::pair<std::size_t, Branch>, std::vector<Step*>> arriving;
    for (Step& step : steps_) {
      leaving[step.from].push_back(&step);
      arriving[{step.to, step.branch}].push_back(&step);
    }
    const auto heading = [&](const Step* s) { return s->lane ? s->lane_x : g_.boxes[s->to].x; };
    for (auto& [box, steps] : leaving) {
      std::stable_sort(steps.begin(), steps.end(),
                       [&](const Step* a, const Step* b) { return heading(a) < heading(b); });
      std::vector<double*> places;
      for (Step* step : steps) places.push_back(&step->out_x);
      spread_out(places, kLaneStep, g_.boxes[box].x, g_.boxes[box].w - 16);
    }
    for (auto& [key, steps] : arriving) {
      std::stable_sort(steps.begin(), steps.end(),
                       [](const Step* a, const Step* b) { return a->trunk_x() < b->trunk_x(); });
      std::vector<double*> places;
      for (Step* step : steps) places.push_back(&step->in_x);
      const GraphBox& box = g_.boxes[key.first];
      const GraphPort* port = port_of(box, key.second);
      spread_out(places, kLaneStep, box.x + (port ? port->x : 0),
                 port ? kPortSize - 4 : box.w - 16);
    }
  }

  bool row_has_ports(std::size_t row) const {
    for (std::size_t box = 0; box < g_.boxes.size(); ++box) {
      if (row_[box] == row && !g_.boxes[box].ports.empty()) return true;
    }
    return false;
  }

  // Horizontal stretches run in the gaps between rows, each on a track of its own; weak ones share
  // one.
  void place_rows() {
    std::vector<std::vector<Interval*>> gaps(rows_.size() - 1);
    std::map<std::size_t, Interval*> shared;
    const auto stretch = [&](const Step& step, double a, double b, std::size_t gap) -> Interval* {
      if (std::abs(a - b) < 0.5) return nullptr;
      const double from = std::min(a, b), to = std::max(a, b);
      if (!step.thin) return gaps[gap].emplace_back(interval(from, to));
      Interval*& common = shared[gap];
      if (!common) common = gaps[gap].emplace_back(interval(from, to));
      widen(*common, from, to);
      return common;
    };
    for (Step& step : steps_) {
      if (step.lane) step.jog = stretch(step, step.out_x, step.lane_x, step.from_row);
      step.approach = stretch(step, step.trunk_x(), step.in_x, step.to_row - 1);
    }
    std::vector<double> above(rows_.size(), 0);  // height of the gap above a row
    for (std::size_t gap = 0; gap < gaps.size(); ++gap)
      above[gap] = std::max(16.0, 12 + kTrackStep * assign_slots(gaps[gap], 4)) +
                   (row_has_ports(gap + 1) ? kPortSize : 0);
    const double total =
        std::accumulate(above.begin(), above.end(), 0.0) + kBoxHeight * rows_.size();
    g_.height = kTopRoom + total + kTokenRoom;
    g_.tokens_y = kTopRoom + total + 20;
    double y = kTopRoom + total;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      row_y_.push_back(y - kBoxHeight / 2);
      y -= kBoxHeight + above[row];
    }
    for (std::size_t box = 0; box < g_.boxes.size(); ++box) g_.boxes[box].y = row_y_[row_[box]];
  }

  void make_bands() {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const int id = rows_[row];
      if (id == 0 || id > 2 * r_.layout.n_layers) continue;
      const int layer = (id - 1) / 2;
      const double top = row_y_[row] - kBoxHeight / 2 - 4,
                   bottom = row_y_[row] + kBoxHeight / 2 + 4 + (row_has_ports(row) ? kPortSize : 0);
      if (!g_.bands.empty() && g_.bands.back().layer == layer) {
        g_.bands.back().top = top;
      } else {
        g_.bands.push_back({layer, top, bottom});
      }
    }
  }

  void draw_lines() {
    const double heaviest = steps_.empty() ? 0 : steps_.front().mass;
    for (Step& step : steps_) {
      const GraphBox &from = g_.boxes[step.from], &to = g_.boxes[step.to];
      const double start = from.y - kBoxHeight / 2,
                   end = to.y + kBoxHeight / 2 + (port_of(to, step.branch) ? kPortSize : 0);
      GraphLine line{{{step.out_x, start}},
                     step.credit,
                     step.thin ? 0.9 : line_width(step.mass, heaviest),
                     step.thin,
                     step.crosses,
                     std::move(step.paths)};
      double x = step.out_x;
      if (step.lane) {
        const double jog = start - 7 - kTrackStep * (step.jog ? step.jog->slot : 0);
        line.points.push_back({x, jog});
        x = step.lane_x;
        line.points.push_back({x, jog});
      }
      if (std::abs(x - step.in_x) >= 0.5) {
        // The tracks of a gap count from its lower side.
        const double approach = row_y_[step.to_row - 1] - kBoxHeight / 2 - 7 -
                                kTrackStep * (step.approach ? step.approach->slot : 0);
        line.points.push_back({x, approach});
        line.points.push_back({step.in_x, approach});
      }
      line.points.push_back({step.in_x, end});
      g_.lines.push_back(std::move(line));
    }
  }

  const TraceResult& r_;
  Writers writers_;
  GraphLimits limits_;
  GraphLayout g_;
  std::map<int, std::size_t> column_of_;
  std::map<BoxKey, std::size_t> box_index_;
  std::vector<int> rows_;         // ids of the rows that hold a box, upward
  std::vector<std::size_t> row_;  // of every box
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> cells_;
  std::vector<Step> steps_;
  std::deque<Interval> intervals_;  // stay where they are
  std::map<std::pair<std::size_t, bool>, int> lane_count_;
  std::vector<double> row_y_;
};

}  // namespace

GraphLayout layout_graph(const TraceResult& result, const GraphLimits& limits) {
  return Builder(result, limits).build();
}

}  // namespace unpack::report
