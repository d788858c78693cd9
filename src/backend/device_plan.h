// A face of backends that choose by length how they make scores (dynamic_cast): what they will do,
// counted from shapes.
#pragma once

#include <string>
#include <vector>

#include "unpack/writers.h"

namespace unpack::backend {

class DevicePlan {
 public:
  struct Part {
    std::string what, way;
    double flop = 0;
    double byte = 0;  // of scores and weights, read and written
  };
  virtual ~DevicePlan() = default;
  virtual std::vector<Part> plan(const Writers& writers, int tokens) = 0;
};

}  // namespace unpack::backend
