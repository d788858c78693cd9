#include "batch/merge.h"

#include <fmt/format.h>

#include <fstream>

#include "base/files.h"
#include "batch/arrays.h"
#include "batch/facts.h"
#include "report/line_log.h"
#include "report/part_file.h"
#include "unpack/error.h"
#include "unpack/report.h"
#include "unpack/shard.h"

namespace unpack::batch {

namespace {

using Json = OrderedJson;

// The good lines of one file, one at a time, in the order of their prompts.
class LineStream {
 public:
  explicit LineStream(const std::filesystem::path& file) : file_(file) {
    if (!base::is_there(file)) return;
    (void)base::InputFile(file);  // no folder, no pipe
    in_.open(file, std::ios::binary);
    if (!in_) throw InputError(fmt::format("cannot read {}", file.string()));
    advance();
  }
  // The line of this prompt, where it is the next one.
  bool take(std::size_t index, std::string& line, LineValues& values) {
    if (!has_ || values_.index != index) return false;
    line = std::move(line_);
    values = std::move(values_);
    advance();
    return true;
  }
  // Behind the last prompt nothing may be left.
  bool ended() const { return !has_; }
  const std::filesystem::path& file() const { return file_; }

 private:
  void advance() {
    has_ = false;
    if (!in_.is_open() || !std::getline(in_, line_) || in_.eof()) return;
    if (!report::is_sealed(line_)) return;  // the merge says that the prompt is missing
    const std::size_t before = values_.index;
    const bool first = first_;
    values_ = read_line(line_, file_.string());
    if (!first && values_.index <= before)
      throw InputError(
          fmt::format("{}: the lines are not in the order of their prompts ({} follows "
                      "{}): the file was changed",
                      file_.string(), values_.index, before));
    first_ = false;
    has_ = true;
  }
  std::filesystem::path file_;
  std::ifstream in_;
  std::string line_;
  LineValues values_;
  bool has_ = false, first_ = true;
};

struct ShardStreams {
  explicit ShardStreams(const std::filesystem::path& folder)
      : results(folder / "results.jsonl"), errors(folder / "errors.jsonl") {}
  LineStream results, errors;
};

}  // namespace

MergeResult merge_batch(const ShardSet& shards, const std::filesystem::path& out,
                        const RunContext& context) {
  using Kind = Json::value_t;
  const Json& run = shards.run;
  const auto records =
      run_member(run, "prompts.records", Kind::number_unsigned).get<std::uint64_t>();
  const auto writer_count = run_member(run, "writers", Kind::number_unsigned).get<std::uint64_t>();
  const bool arrays = run_member(run, "arrays", Kind::boolean).get<bool>();
  constexpr std::uint64_t kMostWriters = 10'000'000;
  if (writer_count > kMostWriters)
    throw InputError(fmt::format("run.json: {} writers are more than any model has", writer_count));
  std::vector<ShardStreams> streams;
  for (const auto& folder : shards.folders) streams.emplace_back(folder);
  settle_run_file(out, run);
  report::PartFile results(out / "results.jsonl"), errors(out / "errors.jsonl");
  Summary summary;
  std::vector<std::string> writers;
  std::string line;
  LineValues values;
  for (std::size_t i = 0; i < records; ++i) {
    context.report("lines", i, records);
    const std::size_t owner = i % streams.size();
    const auto check = [&](bool error, const LineStream& stream) {
      if (values.error != error)
        throw InputError(fmt::format("{}: the line of prompt {} belongs into the other file",
                                     stream.file().string(), i + 1));
    };
    if (streams[owner].results.take(i, line, values)) {
      check(false, streams[owner].results);
      summary.add(values.facts);
      if (!summary.empty() && summary.writers() != writer_count)
        throw InputError(fmt::format("{}: the lines have {} components and run.json says {}",
                                     streams[owner].results.file().string(), summary.writers(),
                                     writer_count));
      if (writers.empty() && !summary.empty())
        writers = read_line(line, "results.jsonl", true).writers;
      results.add(line + "\n");
    } else if (streams[owner].errors.take(i, line, values)) {
      check(true, streams[owner].errors);
      summary.add_error();
      errors.add(line + "\n");
    } else {
      const Shard shard{static_cast<int>(owner) + 1, static_cast<int>(streams.size())};
      throw InputError(
          fmt::format("shard {} in {} is not finished (prompt {} of {} is missing): run it again, "
                      "it goes on where it stopped",
                      to_string(shard), shards.folders[owner].string(), i + 1, records));
    }
  }
  for (const ShardStreams& stream : streams) {
    for (const LineStream* file : {&stream.results, &stream.errors}) {
      if (!file->ended())
        throw InputError(
            fmt::format("{} holds lines of prompts that are not there", file->file().string()));
    }
  }
  results.close();
  errors.close();
  Json json = {{"run", run}};
  json.update(summary.json(writers));
  if (arrays) write_arrays(out, summary.results(), summary.tokens(), writer_count, context);
  write_file(out / "summary.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return {out,
          fmt::format("{} results and {} errors of {} shards in {}\n", summary.results(),
                      summary.errors(), streams.size(), out.string()),
          {}};
}

}  // namespace unpack::batch
