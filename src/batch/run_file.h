// run.json: what made a folder, so that only its like is added to it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace unpack {

// {} where there is none; InputError where it cannot be read.
nlohmann::ordered_json read_run_file(const std::filesystem::path& folder);
// Writes it where there is none. InputError that names the first difference where there is another.
void settle_run_file(const std::filesystem::path& folder, const nlohmann::ordered_json& run);

// The folders of all shards of one run, in order. InputError when they do not belong together, or
// one is missing or doubled.
struct ShardSet {
  nlohmann::ordered_json run;  // as a whole run would say it
  std::vector<std::filesystem::path> folders;
};
ShardSet gather_shards(const std::vector<std::filesystem::path>& folders);

}  // namespace unpack
