// From a family's table and a checkpoint to ModelWeights.
#pragma once

#include "model/checkpoint.h"
#include "model/family.h"

namespace unpack::model {

// Finds every tensor of the table, checks shape, type and that all its values are finite (large
// ones perhaps later), and puts views of it in place.
ModelWeights assemble(const ParsedConfig& parsed, const Checkpoint& checkpoint,
                      LookAt look = LookAt::loaded);

// A row's name for one layer.
std::string tensor_name(const std::string& pattern, int layer);

}  // namespace unpack::model
