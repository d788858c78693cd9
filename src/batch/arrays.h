// Token and node credit of a finished run for numpy.
#pragma once

#include <filesystem>

#include "unpack/run_context.h"

namespace unpack::batch {

// Of results.jsonl in `folder`, T tokens over all its n lines and C writers: token_credit.npy [T],
// node_credit.npy [T, C] (nan for baselines), offsets.npy [n + 1] (line i has rows offsets[i] to
// offsets[i + 1]) and index.npy [n] (which prompt it is).
void write_arrays(const std::filesystem::path& folder, std::size_t lines, std::size_t tokens,
                  std::size_t writers, const RunContext& context = {});

}  // namespace unpack::batch
