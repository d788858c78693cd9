// What a backend will do at a length, counted from shapes: how it makes the scores, and what that
// takes.
#pragma once

#include <string>

namespace unpack::backend {

struct DevicePlan {
  struct Part {
    std::string what, way;
    double flop = 0;
    double byte = 0;  // of scores and weights, read and written
  };
};

}  // namespace unpack::backend
