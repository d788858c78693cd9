#include "experiments/records.h"

#include <fmt/format.h>

#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack::experiments {
namespace {

// A record is foreign input when it is read again.
Json read_record(std::string_view line, const std::filesystem::path& file) {
  Json record = base::read_ordered_json(line, file.string());
  if (record.is_object()) record.erase("crc32");
  return record;
}

std::string key_of(const Json& record, const std::filesystem::path& file) {
  const auto found = record.find("key");
  if (found == record.end() || !found->is_string())
    throw InputError(
        fmt::format("{}: a record has no key: it is not one of this version, or was "
                    "changed",
                    file.string()));
  return found->get<std::string>();
}

}  // namespace

RecordMap read_records(const std::filesystem::path& file, Json& settings) {
  RecordMap records;
  settings = nullptr;
  report::read_sealed(file, [&](std::string_view line) {
    Json record = read_record(line, file);
    if (settings.is_null()) {
      settings = std::move(record);
    } else {
      const std::string key = key_of(record, file);
      records[key] = std::move(record);
    }
  });
  return records;
}

Records::Records(const std::filesystem::path& file, const Json& settings, const Shard& shard)
    : shard_(shard) {
  bool begun = false;
  log_ = std::make_unique<report::LineLog>(file, [&](std::string_view line) {
    Json record = read_record(line, file);
    if (!begun) {
      if (JsonValue(record) != JsonValue(settings)) {  // in any order
        throw InputError(
            fmt::format("{} belongs to a run with other settings ({}): choose another folder, or "
                        "delete the folder",
                        file.string(), base::one_line(record.dump(), 200)));
      }
      begun = true;
      return;
    }
    const std::string key = key_of(record, file);
    known_[key] = std::move(record);
  });
  if (!begun) write(settings);
}

Records::Records(const std::filesystem::path& file, const Json& settings, RecordMap shards,
                 int count)
    : replay_(true), shards_(count), given_(std::move(shards)) {
  std::error_code ignored;
  std::filesystem::remove(file, ignored);  // what an interrupted merge left is soon written again
  log_ = std::make_unique<report::LineLog>(file, [](std::string_view) {});
  write(settings);
}

void Records::write(const Json& line) { log_->append(report::seal(line) + "\n"); }

const Json* Records::find(const std::string& key) {
  if (const auto found = known_.find(key); found != known_.end()) return &found->second;
  const auto given = given_.find(key);
  if (given == given_.end()) return nullptr;
  write(given->second);
  return &(known_[key] = given->second);
}

bool Records::mine(std::size_t index) const {
  if (!replay_) return shard_.owns(index);
  const int owner = index % shards_ + 1;
  throw InputError(fmt::format(
      "shard {}/{} is not finished: run it again, it goes on where it stopped", owner, shards_));
}

const Json& Records::add(const std::string& key, const Json& record) {
  if (replay_)
    throw InputError(
        fmt::format("no shard holds the record '{}': one of them is not finished; run them again, "
                    "they go on where they stopped",
                    key));
  Json line = {{"key", key}};
  line.update(record);
  write(line);
  return known_[key] = std::move(line);
}

}  // namespace unpack::experiments
