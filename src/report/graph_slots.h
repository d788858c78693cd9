// Room for lines beside one another: slots for stretches that overlap, places along an edge.
#pragma once

#include <algorithm>
#include <vector>

namespace unpack::report {

struct Interval {
  double from = 0, to = 0;
  int slot = 0;
};

// Gives overlapping intervals different slots; returns how many slots that takes.
inline int assign_slots(std::vector<Interval*> intervals, double margin) {
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const Interval* a, const Interval* b) { return a->from < b->from; });
  std::vector<double> ends;
  for (Interval* interval : intervals) {
    const auto free = std::find_if(ends.begin(), ends.end(),
                                   [&](double end) { return end + margin < interval->from; });
    interval->slot = free - ends.begin();
    if (free == ends.end()) {
      ends.push_back(interval->to);
    } else {
      *free = interval->to;
    }
  }
  return ends.size();
}

// Places around `centre`, at most `most` apart, within `room`.
inline void spread_out(const std::vector<double*>& places, double most, double centre,
                       double room) {
  const double gap = places.size() > 1 ? std::min(most, room / (places.size() - 1)) : 0;
  for (std::size_t i = 0; i < places.size(); ++i)
    *places[i] = centre + gap * (i - static_cast<double>(places.size() - 1) / 2);
}

}  // namespace unpack::report
