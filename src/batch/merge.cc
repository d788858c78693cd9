#include "batch/merge.h"

#include <fmt/format.h>

#include <fstream>
#include <optional>

#include "batch/arrays.h"
#include "batch/facts.h"
#include "report/line_log.h"
#include "unpack/error.h"
#include "unpack/report.h"
#include "unpack/shard.h"

namespace unpack {

namespace {

using Json = nlohmann::ordered_json;

// The good lines of one file, one at a time.
class LineStream {
 public:
  explicit LineStream(const std::filesystem::path& file) : in_(file, std::ios::binary) {
    advance();
  }
  // The line of this prompt, where it is the next one.
  bool take(std::size_t index, std::string& line) {
    if (!index_ || *index_ != index) return false;
    line = std::move(line_);
    advance();
    return true;
  }

 private:
  void advance() {
    index_.reset();
    if (!std::getline(in_, line_) || in_.eof()) return;
    if (!unseal(line_).empty()) index_ = index_of(line_);
  }
  std::ifstream in_;
  std::string line_;
  std::optional<std::size_t> index_;
};

struct ShardStreams {
  explicit ShardStreams(const std::filesystem::path& folder)
      : results(folder / "results.jsonl"), errors(folder / "errors.jsonl") {}
  LineStream results, errors;
};

// A file that takes its name when it is whole.
class Part {
 public:
  explicit Part(std::filesystem::path file)
      : path_(std::move(file)), part_(path_.string() + ".part"), out_(part_, std::ios::binary) {}
  void add(const std::string& line) { out_ << line << '\n'; }
  void close() {
    out_.close();
    if (!out_) throw InputError(fmt::format("cannot write {}: is the disk full?", path_.string()));
    std::filesystem::rename(part_, path_);
  }

 private:
  std::filesystem::path path_, part_;
  std::ofstream out_;
};

}  // namespace

MergeResult merge_batch(const ShardSet& shards, const std::filesystem::path& out,
                        const RunContext& context) {
  std::vector<ShardStreams> streams;
  for (const auto& folder : shards.folders) streams.emplace_back(folder);
  const auto records = shards.run.at("prompts").at("records").get<std::size_t>();
  settle_run_file(out, shards.run);
  Part results(out / "results.jsonl"), errors(out / "errors.jsonl");
  Summary summary;
  std::vector<std::string> writers;
  std::string line;
  for (std::size_t i = 0; i < records; ++i) {
    context.report("lines", static_cast<double>(i), static_cast<double>(records));
    const std::size_t owner = i % streams.size();
    if (streams[owner].results.take(i, line)) {
      const std::vector<double> facts = facts_of(line);
      summary.add(facts);
      if (writers.empty() && !summary.empty()) {
        const Json object = Json::parse(line);
        for (const auto& [name, row] : object.at("node_credit").items()) writers.push_back(name);
      }
      results.add(line);
    } else if (streams[owner].errors.take(i, line)) {
      summary.add_error();
      errors.add(line);
    } else {
      const Shard shard{static_cast<int>(owner) + 1, static_cast<int>(streams.size())};
      throw InputError(
          fmt::format("shard {} in {} is not finished (prompt {} of {} is missing): run it again, "
                      "it goes on where it stopped",
                      to_string(shard), shards.folders[owner].string(), i + 1, records));
    }
  }
  results.close();
  errors.close();
  Json json = {{"run", shards.run}};
  json.update(summary.json(writers));
  if (shards.run.at("arrays").get<bool>())
    write_arrays(out, summary.results(), json["tokens"]["total"].get<std::size_t>(),
                 shards.run.at("writers"), context);
  write_file(out / "summary.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return {out,
          fmt::format("{} results and {} errors of {} shards in {}\n", summary.results(),
                      summary.errors(), streams.size(), out.string()),
          {}};
}

}  // namespace unpack
