#include <fmt/format.h>

#include <limits>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

struct PredictArguments {
  PromptArguments prompt;
  ModelArguments model;
  PredictOptions options;
  Outputs outputs;
  Color color = Color::automatic;
};

void run_predict(PredictArguments& args, Context& context) {
  args.outputs.check();
  args.prompt.resolve();
  const Model model = args.model.open();
  const RunContext run = context.run();
  const PredictResult result = model.predict(args.prompt.encode(model), args.options, run);
  run.check();
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(to_terminal(result, terminal_style(args.color)));
}

}  // namespace

void add_predict(App& app, Context& context) {
  const auto args = std::make_shared<PredictArguments>();
  Command command = app.add(
      "predict", "The next token's probabilities, and how likely every token of the prompt was",
      "unpack predict \"Mary and John went to the store. John gave a drink to\" --lens");
  args->prompt.add(command);
  args->model.add(command);
  command.option(
      "--top", "N", fmt::format("How many predictions to list (default {})", args->options.top),
      [args](const std::string& text) {
        args->options.top = parse_integer("--top", text, 1, std::numeric_limits<int>::max());
      });
  command.flag("--lens", "What the final norm and head make of every layer's stream",
               args->options.lens);
  command.flag("--experts", "Of a mixture: which experts every token used, with their weights",
               args->options.experts);
  args->outputs.add_json(command);
  add_color(command, args->color);
  command.run([args, &context] { run_predict(*args, context); });
}

}  // namespace unpack::cli
