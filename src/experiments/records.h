// results.jsonl: one record a line, appended as it comes; a second run finds what the first one
// left.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "report/line_log.h"
#include "unpack/json.h"
#include "unpack/shard.h"

namespace unpack::experiments {

using Json = OrderedJson;
using RecordMap = std::map<std::string, Json>;

// The records of a finished file by key; `settings` takes its first line.
RecordMap read_records(const std::filesystem::path& file, Json& settings);

class Records {
 public:
  // `settings` is the first line. Throws InputError when the file was begun with other settings; a
  // half-written last line is dropped.
  Records(const std::filesystem::path& file, const Json& settings, const Shard& shard = {});
  // Takes records from the shards of a run in place of making them: those asked for are written in
  // the order in which a single run would have made them.
  Records(const std::filesystem::path& file, const Json& settings, RecordMap shards, int count);

  const Json* find(const std::string& key);
  const Json& add(const std::string& key, const Json& record);  // on disk when it returns
  // Whether this run makes the index-th record of its kind that is not there yet. InputError where
  // all should be there.
  bool mine(std::size_t index) const;
  bool partial() const {
    return !shard_.whole();
  }  // records of other shards are not there: there is nothing to sum up

 private:
  void write(const Json& line);
  Shard shard_;
  bool replay_ = false;
  int shards_ = 1;
  RecordMap given_, known_;
  std::unique_ptr<report::LineLog> log_;
};

}  // namespace unpack::experiments
