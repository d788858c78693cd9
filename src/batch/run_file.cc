#include "batch/run_file.h"

#include <fmt/format.h>

#include "base/files.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"
#include "unpack/report.h"
#include "unpack/shard.h"

namespace unpack::batch {

using Json = OrderedJson;

namespace {

constexpr const char* kName = "run.json";

// What a batch writes into its folder.
constexpr const char* kWritten[] = {"results.jsonl",    "errors.jsonl",    "summary.json",
                                    "token_credit.npy", "node_credit.npy", "offsets.npy",
                                    "index.npy"};

// `options.beta is 0.8 there and 0.5 here`; empty: they are the same.
std::string first_difference(const Json& there, const Json& here, const char* at_there,
                             const char* at_here, const std::string& path = "") {
  if (there == here) return {};
  const auto shown = [](const Json* value) {
    constexpr std::size_t kLongest = 80;
    return value ? base::one_line(value->dump(-1, ' ', false, Json::error_handler_t::replace),
                                  kLongest)
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
  return {};  // the order of members says nothing
}

// Where a machine keeps its files is its own business.
Json comparable(Json run) {
  run.erase("source");
  return run;
}

}  // namespace

void refuse_foreign(const std::filesystem::path& folder, std::span<const char* const> names) {
  for (const char* name : names) {
    if (!base::is_there(folder / name)) continue;
    // An empty file is what a kill between two steps of an earlier call leaves.
    std::error_code error;
    if (std::filesystem::is_regular_file(folder / name, error) &&
        std::filesystem::file_size(folder / name, error) == 0 && !error)
      continue;
    throw InputError(
        fmt::format("{} holds {}, which no run of this program has put there: choose "
                    "another folder",
                    folder.string(), name));
  }
}

Json read_run_file(const std::filesystem::path& folder) {
  if (!base::is_there(folder / kName)) return {};
  const std::string name = (folder / kName).string();
  try {
    Json run = base::read_ordered_json(
        base::read_plain_file(folder / kName, base::kSmallJson.bytes), name, base::kSmallJson);
    if (run.is_object()) return run;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}; choose another folder, or delete this one", error.what()));
  }
  throw InputError(
      fmt::format("{}: is no JSON object; choose another folder, or delete this one", name));
}

void settle_run_file(const std::filesystem::path& folder, const Json& run) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw InputError(
        fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  const Json there = read_run_file(folder);
  if (there.is_null()) {
    refuse_foreign(folder, kWritten);
    write_file(folder / kName, run.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return;
  }
  const std::string difference = first_difference(there, run, "there", "here");
  if (!difference.empty())
    throw InputError(
        fmt::format("{} belongs to another run ({}): choose another folder, or delete the folder",
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
    Shard shard;
    try {
      shard = parse_shard(run["shard"].get<std::string>());
    } catch (const UsageError& error) {
      throw InputError(fmt::format("{}: {}", (folder / kName).string(), error.what()));
    }
    run["shard"] = nullptr;
    if (count == 0) {
      count = shard.count;
      set.run = run;
      set.folders.resize(count);
    }
    const std::string difference =
        shard.count != count ? fmt::format("there are {} shards in the first and {} in the second",
                                           count, shard.count)
                             : first_difference(comparable(set.run), comparable(run),
                                                "in the first", "in the second");
    if (!difference.empty())
      throw InputError(fmt::format("{} and {} do not belong together: {}", folders[0].string(),
                                   folder.string(), difference));
    auto& place = set.folders[shard.index - 1];
    if (!place.empty())
      throw InputError(fmt::format("shard {} is there twice: {} and {}", to_string(shard),
                                   place.string(), folder.string()));
    place = folder;
  }
  std::string missing;
  int named = 0;
  for (int i = 0; i < count; ++i) {
    constexpr int kNamed = 10;
    if (!set.folders[i].empty() || named > kNamed) continue;
    missing += (missing.empty() ? "" : ", ") +
               (++named > kNamed ? std::string("...") : fmt::format("{}/{}", i + 1, count));
  }
  if (!missing.empty()) throw InputError(fmt::format("shards are missing: {}", missing));
  return set;
}

const Json& run_member(const Json& run, std::string_view member, Json::value_t kind) {
  const Json* at = &run;
  std::string_view rest = member;
  while (!rest.empty()) {
    const std::string name(rest.substr(0, rest.find('.')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const auto found = at->is_object() ? at->find(name) : at->end();
    if (!at->is_object() || found == at->end())
      throw InputError(fmt::format("{}: has no {}; it is not one of this version, or was changed",
                                   kName, member));
    at = &*found;
  }
  if (at->type() != kind)
    throw InputError(
        fmt::format("{}: {} is of another kind; it is not one of this version, or was "
                    "changed",
                    kName, member));
  return *at;
}

}  // namespace unpack::batch
