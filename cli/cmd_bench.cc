#include <fmt/format.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/bench.h"
#include "unpack/error.h"

namespace unpack::cli {
namespace {

struct BenchArguments {
  BenchOptions options;
  Outputs outputs;
  ModelArguments model;
};

void run(BenchArguments& args, Context& context) {
  args.outputs.check();
  args.options.load = args.model.options();
  const RunContext run = context.run();
  if (!args.outputs.any()) args.options.print = [](const std::string& text) { print(text); };
  const BenchResult result = run_bench(args.options, run);
  run.check();
  args.outputs.write("--json", [&] { return to_json(result); });
}

}  // namespace

void add_bench(App& app, Context& context) {
  const auto args = std::make_shared<BenchArguments>();
  Command command = app.add("bench", "What this machine reaches, against its own measured peak",
                            "unpack bench --shape gpt2-small --tokens 16,64 --threads 2");
  command.option("--shape", "NAME",
                 fmt::format("A well-known shape ({}) or a config.json as text, both with random "
                             "weights; or a model's name or folder (default gpt2-small)",
                             fmt::join(known_shapes(), ", ")),
                 args->options.shape);
  command.option("--tokens", "N,N,...", "Prompt lengths to measure (default 16)",
                 args->options.tokens);
  command.option("--repeat", "N", "Runs of which the median is reported (default 3)",
                 args->options.repeat);
  command.option("--prompts", "N", "Prompts of the batch comparison, 0 for none (default 20)",
                 args->options.prompts);
  command.option("--top-paths", "N", "Paths of the one-shot trace (default 20)",
                 args->options.top_paths);
  command.word("--preset", "Settings of the trace (default paper, whose plan the table counts)",
               args->options.preset, preset_names());
  command.word("--dtype", "How the random weights are stored (default f32)", args->options.dtype,
               {"f32", "f16", "bf16"});
  command.option("--keep-layers", "N",
                 "GPU: also time the trace with N layers' weights there, the others uploaded as "
                 "they are needed (default: not)",
                 args->options.keep_layers);
  command.flag("--memory", "GPU: what a trace takes of its memory, and no times",
               args->options.memory_only);
  args->model.add_device(command);
  args->outputs.add_json(command);
  command.run([args, &context] { run(*args, context); });
}

}  // namespace unpack::cli
