// Shards of a run, joined.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "unpack/model.h"
#include "unpack/run_context.h"

namespace unpack {

// Makes of the shards of one batch or one experiment the files that a single run would have
// written, byte for byte. Throws InputError, naming the folders, when they do not belong together
// (model, options, prompts), or when one is missing, doubled or unfinished. `load`: experiments
// look at the model again.
struct MergeResult {
  std::filesystem::path folder;
  std::string text;  // what there is now, for a person; of an experiment its report
  std::vector<std::string> warnings;
};
MergeResult merge_shards(const std::vector<std::filesystem::path>& folders,
                         const std::filesystem::path& out, const LoadOptions& load = {},
                         const RunContext& context = {});

}  // namespace unpack
