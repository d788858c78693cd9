#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <set>

#include "base/message.h"
#include "batch/arrays.h"
#include "batch/facts.h"
#include "batch/request.h"
#include "batch/run_file.h"
#include "report/json.h"
#include "report/line_log.h"
#include "unpack/error.h"
#include "unpack/field_json.h"
#include "unpack/report.h"

namespace unpack {

using Json = OrderedJson;

namespace {

constexpr auto kSyncEvery = std::chrono::seconds(5);

InputError changed(const PromptReader& reader) {
  return InputError(
      fmt::format("{} changed while it was read: put it back, or start again in another folder",
                  reader.name() == "-" ? "stdin" : reader.name()));
}

Json run_json(const BatchOptions& o, const BatchMaker& maker, const PromptReader& reader) {
  return {{"version", 1},
          {"kind", "batch"},
          {"program",
           {{"version", maker.version},
            {"device", maker.device},
            {"weight_products", maker.weight_products}}},
          {"model", report::model_json(maker.model)},
          {"prompts",
           {{"file", reader.name()}, {"records", reader.count()}, {"checksum", reader.checksum()}}},
          {"options", fields_json(to_fields(o.question))},
          {"writers", maker.writers.size()},
          {"arrays", o.arrays},
          {"shard", o.shard.whole() ? Json(nullptr) : Json(to_string(o.shard))}};
}

}  // namespace

struct BatchFolder::Impl {
  BatchOptions options;
  BatchMaker maker;
  PromptReader reader;
  Json run;
  std::vector<bool> known;  // answered, by index
  batch::Summary summary;
  std::unique_ptr<report::LineLog> results, errors;
  std::size_t before = 0, total = 0, handed_out = 0, last_result = 0;
  std::set<std::string> ignored;
  std::chrono::steady_clock::time_point synced = std::chrono::steady_clock::now();

  Impl(const BatchOptions& o, const BatchMaker& m, PromptReader prompts)
      : options(o),
        maker(m),
        reader(std::move(prompts)),
        run(run_json(o, m, reader)),
        known(reader.count(), false) {
    if (o.out.empty()) throw UsageError("out takes the name of a folder");
    batch::settle_run_file(o.out, run);
    for (std::size_t i = 0; i < known.size(); ++i) total += o.shard.owns(i);
    results = open("results.jsonl", false);
    errors = open("errors.jsonl", true);
    for (const std::string& column : reader.ignored_columns()) ignored.insert(column);
  }

  // What an earlier call left is read back; it is foreign input by now.
  std::unique_ptr<report::LineLog> open(const char* name, bool error) {
    const std::string file = (options.out / name).string();
    const auto refuse = [&](const std::string& why) {
      throw InputError(fmt::format("{} {}: delete the folder", file, why));
    };
    std::size_t next = 0;  // the least index that may follow
    return std::make_unique<report::LineLog>(
        options.out / name, [&, error](std::string_view object) {
          const batch::LineValues line = batch::read_line(object, file);
          if (line.index >= known.size() || !options.shard.owns(line.index) || known[line.index] ||
              line.error != error)
            refuse(fmt::format("holds a line that does not belong there (index {})", line.index));
          if (line.index < next)
            refuse(fmt::format("holds its lines in another order ({} follows {})", line.index,
                               next - 1));
          next = line.index + 1;
          known[line.index] = true;
          ++before;
          if (error) {
            summary.add_error();
            return;
          }
          last_result = next;
          constexpr std::size_t kAboutOne = 2;  // a baseline has no components
          if (line.facts.size() > kAboutOne && line.facts.size() != maker.writers.size() + 4)
            refuse(fmt::format("holds a line of another model (index {})", line.index));
          summary.add(line.facts);
        });
  }

  void append(const std::vector<BatchLine>& lines) {
    std::string good, bad;
    for (const BatchLine& line : lines) {
      ignored.insert(line.unknown.begin(), line.unknown.end());
      (line.error ? bad : good) += line.text + "\n";
      if (line.error) {
        summary.add_error();
        if (options.strict) {
          throw InputError(
              fmt::format("prompt {} of {}: {}; mend it, or go on without it (not strict)",
                          line.index + 1, reader.name(), line.reason));
        }
      } else {
        if (line.index < last_result) {
          throw InputError(fmt::format(
              "{} lacks prompt {} and holds later ones: it was changed by hand; delete the folder",
              (options.out / "results.jsonl").string(), line.index + 1));
        }
        last_result = line.index + 1;
        summary.add(line.facts);
      }
      known.at(line.index) = true;
    }
    // Errors first: a prompt that stands in neither file is then always one behind the last result,
    // and order is kept when the work is taken up again.
    errors->append(bad);
    results->append(good);
    if (std::chrono::steady_clock::now() - synced > kSyncEvery) sync();
  }

  void sync() {
    errors->sync();
    results->sync();
    synced = std::chrono::steady_clock::now();
  }
};

BatchFolder::BatchFolder(const BatchOptions& options, const BatchMaker& maker, PromptReader prompts)
    : impl_(std::make_unique<Impl>(options, maker, std::move(prompts))) {}
BatchFolder::~BatchFolder() = default;

std::size_t BatchFolder::total() const { return impl_->total; }
std::size_t BatchFolder::done() const { return impl_->summary.results() + impl_->summary.errors(); }

std::vector<PromptRecord> BatchFolder::next(std::size_t prompts) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  std::vector<PromptRecord> out;
  std::size_t bytes = 0;
  PromptRecord record;
  while (out.size() < prompts && bytes < kBytes && impl_->reader.next(record)) {
    if (record.index >= impl_->known.size()) throw changed(impl_->reader);
    if (!impl_->options.shard.owns(record.index) || impl_->known[record.index]) continue;
    bytes += record.fields.size();
    out.push_back(std::move(record));
  }
  return out;
}

void BatchFolder::append(const std::vector<BatchLine>& lines) { impl_->append(lines); }

BatchResult BatchFolder::finish() {
  Impl& i = *impl_;
  if (done() != i.total) throw changed(i.reader);  // it has become shorter
  i.sync();
  Json json = {{"run", i.run}};
  json.update(i.summary.json(i.maker.writers));
  if (i.options.arrays) {
    batch::write_arrays(i.options.out, i.summary.results(),
                        json["tokens"]["total"].get<std::size_t>(), i.maker.writers.size());
  }
  write_file(i.options.out / "summary.json",
             json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  BatchResult result{i.options.out, i.summary.results(), i.summary.errors(), i.before, {}};
  if (!i.ignored.empty())
    result.warnings.push_back(
        base::one_line(fmt::format("nobody reads the field{} {}", i.ignored.size() == 1 ? "" : "s",
                                   fmt::join(i.ignored, ", "))));
  return result;
}

namespace {

[[noreturn]] void refuse(const PromptReader& reader, std::size_t line, const std::string& reason) {
  throw InputError(fmt::format("{}, line {}: {}; mend it, or go on without it (not strict)",
                               reader.name() == "-" ? "stdin" : reader.name(), line, reason));
}

void check_all(const Model& model, PromptReader& prompts, const BatchOptions& options,
               const RunContext& context) {
  PromptRecord record;
  while (prompts.next(record)) {
    context.report("checking", record.index, prompts.count());
    if (!options.shard.owns(record.index)) continue;
    if (!record.problem.empty()) refuse(prompts, record.line, record.problem);
    try {
      batch::read_request(model, options.question, record.fields);
    } catch (const InputError& error) {
      refuse(prompts, record.line, error.what());
    } catch (const UsageError& error) {
      refuse(prompts, record.line, error.what());
    }
  }
  prompts.rewind();
}

}  // namespace

BatchResult run_batch(const Model& model, PromptReader prompts, const BatchOptions& options,
                      const RunContext& context) {
  // A few seconds of work at a time: that much a kill can cost.
  constexpr std::size_t kFewest = 8, kMost = 1024;
  constexpr double kShort = 2, kLong = 8;  // seconds
  if (options.strict) check_all(model, prompts, options, context);
  BatchFolder folder(options, batch_maker(model), std::move(prompts));
  std::size_t window = kFewest;
  RunContext inner = context;
  for (;;) {
    const auto begin = std::chrono::steady_clock::now();
    context.report("prompts", folder.done(), folder.total());
    if (context.progress) {
      const double done = folder.done(), total = folder.total();
      inner.progress = [&context, done, total](const Progress& p) {
        context.progress({"prompts", done + p.done, total});
      };
    }
    const std::vector<PromptRecord> records = folder.next(window);
    if (records.empty()) break;
    folder.append(trace_prompts(model, options.question, records, inner));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (seconds < kShort) window = std::min(window * 2, kMost);
    if (seconds > kLong) window = std::max(window / 2, kFewest);
  }
  return folder.finish();
}

}  // namespace unpack
