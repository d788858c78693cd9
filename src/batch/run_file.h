// run.json: what made a folder, so that only its like is added to it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/json.h"

namespace unpack::batch {

// InputError where one of these files is in the folder with something in it: it is not ours.
void refuse_foreign(const std::filesystem::path& folder, std::span<const char* const> names);

// {} where there is none; InputError where it cannot be read.
OrderedJson read_run_file(const std::filesystem::path& folder);
// Writes it where there is none. InputError that names the first difference where there is another.
void settle_run_file(const std::filesystem::path& folder, const OrderedJson& run);

// The folders of all shards of one run, in order. InputError when they do not belong together, or
// one is missing or doubled.
struct ShardSet {
  OrderedJson run;  // as a whole run would say it
  std::vector<std::filesystem::path> folders;
};
// A member by its path, "prompts.records". Whoever reads the file did not write it: InputError
// where the member is missing or of another kind.
const OrderedJson& run_member(const OrderedJson& run, std::string_view member,
                              OrderedJson::value_t kind);

ShardSet gather_shards(const std::vector<std::filesystem::path>& folders);

}  // namespace unpack::batch
