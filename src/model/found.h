// Models that were found: what can be said of them, and which are nearest to a name that was not.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "unpack/models.h"

namespace unpack::model {

// Fills in family, type, size, context and memory, or why the model cannot be used.
void examine(FoundModel& model);

// "; did you mean a, b?", from the known names and what lies beside a path; empty where nothing is
// near.
std::string nearest_names(const std::string& name, const std::vector<FoundModel>& known);

// A folder among many that may not be looked into is passed over.
bool may_have_config(const std::filesystem::path& folder);

}  // namespace unpack::model
