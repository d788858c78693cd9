// Shards of a batch, joined.
#pragma once

#include "batch/run_file.h"
#include "unpack/merge.h"

namespace unpack::batch {

MergeResult merge_batch(const ShardSet& shards, const std::filesystem::path& out,
                        const RunContext& context);

}  // namespace unpack::batch
