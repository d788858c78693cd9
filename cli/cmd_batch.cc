#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/batch.h"
#include "unpack/error.h"

namespace unpack::cli {
namespace {

struct BatchArguments {
  ModelArguments model;
  QuestionArguments question;
  ChatArguments chat;
  std::optional<std::string> prompts, out;
  bool no_bos = false;
  std::string format = "auto";
  BatchOptions options;
};

void run(BatchArguments& args, Context& context) {
  if (!args.prompts)
    throw UsageError(
        "no prompts: name a file (JSONL, CSV, TSV or one prompt a line), or - for stdin");
  if (!args.out || args.out->empty())
    throw UsageError("out takes the name of a folder for the results: --out FOLDER");
  BatchOptions& o = args.options;
  o.out = *args.out;
  GivenPrompt all;  // what the prompts have in common
  all.no_bos = args.no_bos;
  all.chat = args.chat.settings();
  all.check();
  args.question.check(all.is_chat());
  args.chat.read_template(all.chat);
  PromptReader prompts(*args.prompts, parse_prompt_format(args.format));
  const Model model = for_batch(args.model.open(), prompts.count());
  o.question = args.question.read(model);
  o.question.no_bos = all.no_bos;
  o.question.chat = all.chat;
  const auto begin = std::chrono::steady_clock::now();
  BatchResult result;
  try {
    result = run_batch(model, std::move(prompts), o, context.run_logged());
  } catch (const Cancelled&) {
    throw Interrupted(
        fmt::format("interrupted: what was done is in {}, and the same command goes on from there",
                    o.out.string()));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::size_t fresh = result.results + result.errors - result.done_before;
  clear_progress();
  std::vector<std::string> remarks;
  if (result.errors > 0)
    remarks.push_back(fmt::format("{} bad line{}: see {}", result.errors,
                                  result.errors == 1 ? "" : "s",
                                  (o.out / "errors.jsonl").string()));
  remarks.insert(remarks.end(), result.warnings.begin(), result.warnings.end());
  // A failure is one line.
  if (result.results == 0 && !remarks.empty())
    remarks = {fmt::format("{}", fmt::join(remarks, "; "))};
  print(fmt::format(
      "{} of {} prompts in {:.1f} s ({:.1f} a second), {} done before; {} results in {}\n", fresh,
      result.results + result.errors, seconds, fresh / std::max(seconds, 1e-9), result.done_before,
      result.results, (o.out / "results.jsonl").string()));
  // Last: what fails before is told alone.
  for (const std::string& remark : remarks) warn(remark);
  if (result.results == 0) context.status = 1;
}

}  // namespace

void add_batch(App& app, Context& context) {
  const auto args = std::make_shared<BatchArguments>();
  Command command =
      app.add("batch", "Trace many prompts from a file into a folder; a second call resumes",
              "unpack batch prompts.jsonl --out results --model pocket-gpt2");
  command.positional("PROMPTS",
                     "JSONL (prompt or ids; id, target, versus, position, root, ... override the "
                     "options below), CSV or TSV with a header, or text; - for stdin",
                     [args](const std::string& text) { args->prompts = text; });
  command.option("--out", "FOLDER", "Where results.jsonl, errors.jsonl and summary.json go",
                 args->out);
  command.word("--format", "Of PROMPTS (default auto: by its suffix)", args->format,
               {"auto", "text", "jsonl", "csv", "tsv"});
  add_shard(command, args->options.shard);
  command.flag("--strict",
               "Stop at a bad line before any work is done, rather than write it to errors.jsonl",
               args->options.strict);
  command.flag("--arrays", "Write token and node credit as .npy, too", args->options.arrays);
  command.flag("--no-bos", "Leave out the special tokens that go in front of a prompt",
               args->no_bos);
  args->chat.add(command);
  args->question.add_answer(command);
  args->model.add(command);
  args->question.add(command);
  command.run([args, &context] { run(*args, context); });
}

}  // namespace unpack::cli
