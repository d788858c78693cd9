#include "batch/run_file.h"

#include <fmt/format.h>

#include <fstream>

#include "unpack/error.h"
#include "unpack/report.h"
#include "unpack/shard.h"

namespace unpack {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kName = "run.json";

// `options.beta is 0.8 there and 0.5 here`; empty: they are the same.
std::string first_difference(const Json& there, const Json& here, const char* at_there,
                             const char* at_here, const std::string& path = "") {
  if (there == here) return {};
  const auto shown = [](const Json* value) {
    return value ? value->dump(-1, ' ', false, Json::error_handler_t::replace)
                 : std::string("not given");
  };
  if (!there.is_object() || !here.is_object())
    return fmt::format("{} is {} {} and {} {}", path, shown(&there), at_there, shown(&here),
                       at_here);
  const auto inner = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  for (const auto& [key, value] : there.items()) {
    if (!here.contains(key))
      return fmt::format("{} is {} {} and not given {}", inner(key), shown(&value), at_there,
                         at_here);
    if (const std::string found = first_difference(value, here[key], at_there, at_here, inner(key));
        !found.empty())
      return found;
  }
  for (const auto& [key, value] : here.items()) {
    if (!there.contains(key))
      return fmt::format("{} is not given {} and {} {}", inner(key), at_there, shown(&value),
                         at_here);
  }
  return fmt::format("{} has another order", path);
}

// Where a machine keeps its files is its own business.
Json comparable(Json run) {
  run.erase("source");
  return run;
}

}  // namespace

Json read_run_file(const std::filesystem::path& folder) {
  std::ifstream in(folder / kName, std::ios::binary);
  if (!in) return {};
  Json run = Json::parse(in, nullptr, false);
  if (!run.is_object())
    throw InputError(fmt::format("{} is damaged: choose another --out, or delete the folder",
                                 (folder / kName).string()));
  return run;
}

void settle_run_file(const std::filesystem::path& folder, const Json& run) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw InputError(
        fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  const Json there = read_run_file(folder);
  if (there.is_null()) {
    // An empty file is what a kill between two steps of an earlier call leaves.
    if (std::filesystem::exists(folder / "results.jsonl", error) &&
        std::filesystem::file_size(folder / "results.jsonl", error) > 0) {
      throw InputError(
          fmt::format("{} holds results of something else: choose another --out", folder.string()));
    }
    write_file(folder / kName, run.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return;
  }
  const std::string difference = first_difference(there, run, "there", "here");
  if (!difference.empty())
    throw InputError(
        fmt::format("{} belongs to another run ({}): choose another --out, or delete the folder",
                    folder.string(), difference));
}

ShardSet gather_shards(const std::vector<std::filesystem::path>& folders) {
  ShardSet set;
  int count = 0;
  for (const auto& folder : folders) {
    Json run = read_run_file(folder);
    if (run.is_null())
      throw InputError(
          fmt::format("{} is no folder of a shard: it has no {}", folder.string(), kName));
    if (!run.contains("shard") || !run["shard"].is_string())
      throw InputError(fmt::format("{} holds a whole run, not a shard: there is nothing to merge",
                                   folder.string()));
    const Shard shard = parse_shard(run["shard"].get<std::string>());
    run["shard"] = nullptr;
    if (count == 0) {
      count = shard.count;
      set.run = run;
      set.folders.resize(static_cast<std::size_t>(count));
    }
    const std::string difference =
        shard.count != count ? fmt::format("there are {} shards in the first and {} in the second",
                                           count, shard.count)
                             : first_difference(comparable(set.run), comparable(run),
                                                "in the first", "in the second");
    if (!difference.empty())
      throw InputError(fmt::format("{} and {} do not belong together: {}", folders[0].string(),
                                   folder.string(), difference));
    auto& place = set.folders[static_cast<std::size_t>(shard.index - 1)];
    if (!place.empty())
      throw InputError(fmt::format("shard {} is there twice: {} and {}", to_string(shard),
                                   place.string(), folder.string()));
    place = folder;
  }
  std::string missing;
  for (int i = 0; i < count; ++i) {
    if (set.folders[static_cast<std::size_t>(i)].empty())
      missing += fmt::format("{}{}/{}", missing.empty() ? "" : ", ", i + 1, count);
  }
  if (!missing.empty()) throw InputError(fmt::format("shards are missing: {}", missing));
  return set;
}

}  // namespace unpack
