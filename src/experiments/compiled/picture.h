// The true circuit beside the one a method found.
#pragma once

#include <string>
#include <vector>

#include "experiments/compiled/program.h"

namespace unpack::experiments::compiled {

// `edges`: sizes in the order of Program::edges(). As many are drawn as are true; those that are
// not among the true ones are dashed.
std::string circuit_picture(const Program& program, const std::vector<double>& edges,
                            const std::string& method);

}  // namespace unpack::experiments::compiled
