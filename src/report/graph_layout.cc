#include "report/graph_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "report/labels.h"
#include "report/text.h"

namespace unpack::report {
namespace {

constexpr double kBoxHeight = 20, kLaneStep = 5, kTrackStep = 5, kSideMargin = 62, kTokenRoom = 44,
                 kTopRoom = 8, kCellGap = 8;

struct Interval {
  double from = 0, to = 0;
  int slot = 0;
};

// Gives overlapping intervals different slots; returns how many slots that takes.
int assign_slots(std::vector<Interval*> intervals, double margin) {
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const Interval* a, const Interval* b) { return a->from < b->from; });
  std::vector<double> ends;
  for (Interval* interval : intervals) {
    const auto free = std::find_if(ends.begin(), ends.end(),
                                   [&](double end) { return end + margin < interval->from; });
    interval->slot = static_cast<int>(free - ends.begin());
    if (free == ends.end()) {
      ends.push_back(interval->to);
    } else {
      *free = interval->to;
    }
  }
  return static_cast<int>(ends.size());
}

// A step of one path, from a box to the box that reads it.
struct Step {
  std::size_t rank = 0, from = 0, to = 0;
  Branch branch = Branch::none;
  std::size_t from_row = 0, to_row = 0;  // places among the used rows
  std::size_t column = 0;                // of `from`
  bool crosses = false, needs_lane = false, thin = false;
  Interval lane, jog, approach;
  double out_x = 0, in_x = 0, lane_x = 0;

  double trunk_x() const { return needs_lane ? lane_x : out_x; }  // where it climbs
};

class Builder {
 public:
  Builder(const TraceResult& result, const GraphLimits& limits)
      : r_(result), writers_(result.writer_table()), limits_(limits) {}

  GraphLayout build() {
    choose_paths();
    place_boxes_in_cells();
    make_steps();
    find_lanes();
    place_columns();
    place_ports();
    place_rows();
    draw_lines();
    return std::move(g_);
  }

 private:
  using BoxKey = std::pair<int, int>;  // writer, position; writer -1: the target
  static constexpr int kTargetWriter = -1;

  int row_of(int writer) const {
    if (writer == kTargetWriter) return 1 + 2 * r_.layout.n_layers;
    const Writer& w = writers_[writer];
    return w.terminal() ? 0 : 1 + 2 * w.layer + (w.kind == WriterKind::mlp ? 1 : 0);
  }

  bool shows_every_token() const { return r_.tokens.size() <= limits_.all_tokens; }

  // The strongest paths that fit the columns.
  void choose_paths() {
    std::vector<std::size_t> order(r_.paths.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(r_.paths[a].credit) > std::abs(r_.paths[b].credit);
    });
    std::set<int> positions;
    if (!r_.root) positions.insert(r_.target.position);
    const double largest = order.empty() ? 0 : std::abs(r_.paths[order.front()].credit);
    int shades[2] = {0, 0};
    for (const std::size_t index : order) {
      if (g_.drawn.size() == limits_.drawn) break;
      const Path& path = r_.paths[index];
      std::set<int> wider = positions;
      for (const Node& node : path.nodes) wider.insert(node.position);
      const bool thin =
          g_.drawn.size() >= limits_.strong;  // thin paths bring no columns of their own
      if (!shows_every_token() &&
          wider.size() > (thin ? positions.size() : std::max(positions.size(), limits_.columns)))
        continue;
      positions = std::move(wider);
      DrawnPath drawn{index, thin, 0, 1};
      if (!drawn.thin) {
        drawn.shade = shades[path.credit < 0 ? 1 : 0]++ % kShades;
        drawn.width = 1.2 + (largest > 0 ? 3.3 * std::abs(path.credit) / largest : 0);
      }
      g_.drawn.push_back(drawn);
    }
    g_.left_out = r_.paths.size() - g_.drawn.size();
    if (shows_every_token()) {
      for (int s = 0; s < r_.length(); ++s) positions.insert(s);
    }
    int before = -1;
    for (const int position : positions) {
      if (position != before + 1) g_.columns.push_back({-1, 0, 0, "…"});
      column_of_[position] = g_.columns.size();
      const std::string label = clip(
          token_label(r_.tokens.at(static_cast<std::size_t>(position)).text, {true}), 14, true);
      g_.columns.push_back({position, 0, 0, label});
      before = position;
    }
    if (before + 1 < r_.length()) g_.columns.push_back({-1, 0, 0, "…"});
  }

  std::size_t box_at(BoxKey key) {
    const auto [found, fresh] = box_index_.try_emplace(key, g_.boxes.size());
    if (!fresh) return found->second;
    GraphBox box;
    box.node = {key.first, key.second};
    box.target = key.first == kTargetWriter;
    box.h = kBoxHeight;
    if (box.target) {
      box.label = "target " + clip(quoted_token(r_.target.text, {true}), 18, true);
    } else {
      box.root = r_.root == box.node;
      box.label = writers_.name(key.first);
      box.credit = r_.node_credit.at(static_cast<std::size_t>(key.first))
                       .at(static_cast<std::size_t>(key.second));
      if (!std::isfinite(box.credit)) box.credit = 0;
      g_.largest_credit = std::max(g_.largest_credit, std::abs(box.credit));
    }
    box.w = std::max(writers_terminal(key.first) ? 32.0 : 48.0, text_width(box.label, 10) + 10);
    g_.boxes.push_back(std::move(box));
    return found->second;
  }

  bool writers_terminal(int writer) const {
    return writer != kTargetWriter && writers_[writer].terminal();
  }

  void place_boxes_in_cells() {
    for (const DrawnPath& drawn : g_.drawn) {
      for (const Node& node : r_.paths[drawn.index].nodes) box_at({node.writer, node.position});
    }
    if (!r_.root && !g_.drawn.empty()) box_at({kTargetWriter, r_.target.position});
    std::set<int> rows;
    for (const auto& [key, box] : box_index_)
      rows.insert(row_of(key.first));  // map order: heads stand in order within a cell
    rows_.assign(rows.begin(), rows.end());
    for (const auto& [key, box] : box_index_) {
      const auto row = static_cast<std::size_t>(
          std::lower_bound(rows_.begin(), rows_.end(), row_of(key.first)) - rows_.begin());
      row_.resize(g_.boxes.size());
      row_[box] = row;
      cells_[{column_of_.at(key.second), row}].push_back(box);
    }
  }

  void make_steps() {
    for (std::size_t rank = 0; rank < g_.drawn.size(); ++rank) {
      const Path& path = r_.paths[g_.drawn[rank].index];
      std::vector<std::pair<std::size_t, Branch>> stops;
      for (std::size_t i = 0; i < path.nodes.size(); ++i) {
        stops.emplace_back(box_index_.at({path.nodes[i].writer, path.nodes[i].position}),
                           i < path.branches.size() ? path.branches[i] : Branch::none);
      }
      if (!r_.root)
        stops.emplace_back(box_index_.at({kTargetWriter, r_.target.position}), Branch::none);
      for (const auto& stop : stops) g_.boxes[stop.first].paths.push_back(rank);
      for (std::size_t i = 1; i < stops.size(); ++i) {
        Step step;
        step.rank = rank;
        step.thin = g_.drawn[rank].thin;
        step.from = stops[i - 1].first;
        step.to = stops[i].first;
        step.branch = stops[i].second;
        step.from_row = row_[step.from];
        step.to_row = row_[step.to];
        step.column = column_of_.at(g_.boxes[step.from].node.position);
        step.crosses = g_.boxes[step.from].node.position != g_.boxes[step.to].node.position;
        steps_.push_back(step);
      }
    }
  }

  // A line that would run through boxes of its own column takes a lane beside them: left within a
  // position, right where it leaves.
  void find_lanes() {
    std::map<std::pair<std::size_t, bool>, std::vector<Interval*>> lanes;
    for (Step& step : steps_) {
      if (step.thin) continue;
      for (std::size_t row = step.from_row + 1; row < step.to_row; ++row)
        step.needs_lane = step.needs_lane || cells_.contains({step.column, row});
      if (!step.needs_lane) continue;
      step.lane.from = static_cast<double>(step.from_row) + 0.5;
      step.lane.to = static_cast<double>(step.to_row) - 0.5;
      lanes[{step.column, step.crosses}].push_back(&step.lane);
    }
    for (auto& [key, intervals] : lanes) lane_count_[key] = assign_slots(intervals, 0.1);
  }

  int lanes_of(std::size_t column, bool crosses) const {
    const auto found = lane_count_.find({column, crosses});
    return found == lane_count_.end() ? 0 : found->second;
  }

  void place_columns() {
    std::vector<double> cells_width(g_.columns.size(), 0);
    for (const auto& [where, boxes] : cells_) {
      double width = kCellGap * static_cast<double>(boxes.size() - 1);
      for (const std::size_t box : boxes) width += g_.boxes[box].w;
      cells_width[where.first] = std::max(cells_width[where.first], width);
    }
    double x = kSideMargin;
    std::vector<double> middle(g_.columns.size(), 0);
    for (std::size_t c = 0; c < g_.columns.size(); ++c) {
      GraphColumn& column = g_.columns[c];
      const double left = kLaneStep * lanes_of(c, false), right = kLaneStep * lanes_of(c, true);
      const double centre =
          std::max(cells_width[c], column.position < 0 ? 24.0 : text_width(column.label, 11) + 10);
      column.w = left + centre + right + 12;
      middle[c] = x + 6 + left + centre / 2;
      column.x = middle[c];
      half_centre_.push_back(cells_width[c] / 2);
      x += column.w;
    }
    g_.width = x + 10;
    for (const auto& [where, boxes] : cells_) {
      double width = kCellGap * static_cast<double>(boxes.size() - 1);
      for (const std::size_t box : boxes) width += g_.boxes[box].w;
      double at = middle[where.first] - width / 2;
      for (const std::size_t box : boxes) {
        g_.boxes[box].x = at + g_.boxes[box].w / 2;
        at += g_.boxes[box].w + kCellGap;
      }
    }
    for (Step& step : steps_) {
      const double beside = half_centre_[step.column] + 4 + kLaneStep * step.lane.slot;
      step.lane_x = middle[step.column] + (step.crosses ? beside : -beside);
    }
  }

  static void spread(const std::vector<double*>& ports, double centre, double room, double most) {
    const double gap =
        ports.size() > 1 ? std::min(most, room / static_cast<double>(ports.size() - 1)) : 0;
    for (std::size_t i = 0; i < ports.size(); ++i)
      *ports[i] =
          centre + gap * (static_cast<double>(i) - static_cast<double>(ports.size() - 1) / 2);
  }

  // A head reads K, Q and V through three places of its lower edge, a gated MLP G and U through
  // two, a mixture R between them.
  double zone_of(std::size_t box, Branch branch) const {
    const auto side = [&] {
      const auto layer = static_cast<std::size_t>(writers_[g_.boxes[box].node.writer].layer);
      return layer < r_.layout.layers.size() && r_.layout.layers[layer].mixture() ? 15.0 : 10.0;
    };
    switch (branch) {
      case Branch::K:
        return -15;
      case Branch::V:
        return 15;
      case Branch::G:
        return -side();
      case Branch::U:
        return side();
      default:
        return 0;
    }
  }

  void place_ports() {
    std::map<std::size_t, std::vector<Step*>> leaving;
    std::map<std::pair<std::size_t, Branch>, std::vector<Step*>> arriving;
    for (Step& step : steps_) {
      if (step.thin) {
        step.out_x = g_.boxes[step.from].x;
        step.in_x = g_.boxes[step.to].x + zone_of(step.to, step.branch);
      }
      if (!step.thin) leaving[step.from].push_back(&step);
      arriving[{step.to, step.branch}].push_back(&step);
    }
    for (auto& [box, steps] : leaving) {
      std::stable_sort(steps.begin(), steps.end(),
                       [&](const Step* a, const Step* b) { return heading_x(*a) < heading_x(*b); });
      std::vector<double*> ports;
      for (Step* step : steps) ports.push_back(&step->out_x);
      spread(ports, g_.boxes[box].x, g_.boxes[box].w - 12, kLaneStep);
    }
    for (auto& [key, steps] : arriving) {
      std::stable_sort(steps.begin(), steps.end(),
                       [](const Step* a, const Step* b) { return a->trunk_x() < b->trunk_x(); });
      std::vector<double*> ports;
      HopMark mark;
      mark.text = hop_label(key.second);
      const GraphBox& box = g_.boxes[key.first];
      for (Step* step : steps) {
        if (!step->thin) ports.push_back(&step->in_x);
        mark.paths.push_back(step->rank);
      }
      spread(ports, box.x + zone_of(key.first, key.second), mark.text.empty() ? box.w - 12 : 11,
             kLaneStep);
      if (mark.text.empty()) continue;
      mark.at.x = box.x + zone_of(key.first, key.second);
      marked_.push_back(key.first);
      g_.marks.push_back(std::move(mark));
    }
  }

  double heading_x(const Step& step) const {
    return step.needs_lane ? step.lane_x : g_.boxes[step.to].x;
  }

  // Horizontal stretches run in the gaps between rows, each on a track of its own.
  void place_rows() {
    std::vector<std::vector<Interval*>> gaps(rows_.empty() ? 0 : rows_.size() - 1);
    const auto stretch = [&](Interval& interval, double a, double b, std::size_t gap) {
      interval.from = std::min(a, b);
      interval.to = std::max(a, b);
      if (interval.to - interval.from > 0.5) gaps[gap].push_back(&interval);
    };
    for (Step& step : steps_) {
      if (step.thin) continue;
      if (step.needs_lane) stretch(step.jog, step.out_x, step.lane_x, step.from_row);
      stretch(step.approach, step.trunk_x(), step.in_x, step.to_row - 1);
    }
    std::vector<double> above(rows_.size(), 0);  // height of the gap above a row
    std::vector<bool> has_marks(rows_.size(), false);
    for (const std::size_t box : marked_) has_marks[row_[box]] = true;
    for (std::size_t gap = 0; gap < gaps.size(); ++gap) {
      const int tracks = assign_slots(gaps[gap], 3);
      above[gap] = std::max(18.0, 12 + kTrackStep * tracks) + (has_marks[gap + 1] ? 14 : 4);
    }
    const double total = std::accumulate(above.begin(), above.end(), 0.0) +
                         kBoxHeight * static_cast<double>(rows_.size());
    g_.height = kTopRoom + total + kTokenRoom;
    g_.tokens_y = g_.height - kTokenRoom + 20;
    double y = kTopRoom + total;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      row_y_.push_back(y - kBoxHeight / 2);
      y -= kBoxHeight + above[row];
    }
    for (std::size_t box = 0; box < g_.boxes.size(); ++box) g_.boxes[box].y = row_y_[row_[box]];
    for (std::size_t i = 0; i < g_.marks.size(); ++i)
      g_.marks[i].at.y = g_.boxes[marked_[i]].y + kBoxHeight / 2 + 10;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const int id = rows_[row];
      if (id == 0 || id > 2 * r_.layout.n_layers) continue;
      const int layer = (id - 1) / 2;
      const double top = row_y_[row] - kBoxHeight / 2 - 4,
                   bottom = row_y_[row] + kBoxHeight / 2 + 4;
      if (!g_.bands.empty() && g_.bands.back().layer == layer) {
        g_.bands.back().top = top;
      } else {
        g_.bands.push_back({layer, top, bottom});
      }
    }
  }

  void draw_lines() {
    for (const Step& step : steps_) {
      const GraphBox &from = g_.boxes[step.from], &to = g_.boxes[step.to];
      const double start = from.y - from.h / 2, end = to.y + to.h / 2;
      const double jog = start - 7 - kTrackStep * step.jog.slot;
      // The tracks of a gap count from its lower side.
      const double approach =
          row_y_[step.to_row - 1] - kBoxHeight / 2 - 7 - kTrackStep * step.approach.slot;
      GraphLine line;
      line.rank = step.rank;
      std::vector<Point> points = {{step.out_x, start}};
      if (step.thin) {  // straight behind the others: a lane for each would blow the picture up
        (step.crosses ? line.dashed : line.solid) =
            std::vector<Point>{points.front(), {step.in_x, end}};
        g_.lines.push_back(std::move(line));
        continue;
      }
      double x = step.out_x;
      if (step.needs_lane) {
        points.push_back({x, jog});
        x = step.lane_x;
        points.push_back({x, jog});
      }
      if (!step.crosses) {
        if (std::abs(x - step.in_x) > 0.5) {
          points.push_back({x, approach});
          points.push_back({step.in_x, approach});
        }
        points.push_back({step.in_x, end});
        line.solid = std::move(points);
      } else {
        const double bend = approach + 8;  // the corner belongs to the dashed part
        const bool climbs = points.back().y - bend > 4;
        if (climbs) points.push_back({x, bend});
        line.dashed = {points.back(), {x, approach}, {step.in_x, approach}, {step.in_x, end}};
        if (points.size() > 1) line.solid = std::move(points);
      }
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
  std::map<std::pair<std::size_t, bool>, int> lane_count_;
  std::vector<double> half_centre_, row_y_;
  std::vector<std::size_t> marked_;  // the box of every mark
};

}  // namespace

GraphLayout layout_graph(const TraceResult& result, const GraphLimits& limits) {
  return Builder(result, limits).build();
}

}  // namespace unpack::report
