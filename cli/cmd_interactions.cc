#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

struct InteractionArguments {
  PromptArguments prompt;
  ModelArguments model;
  std::optional<int> query;
  bool all = false;
  Outputs outputs;
  Color color = Color::automatic;
};

void run_interactions(InteractionArguments& args, Context& context) {
  args.outputs.check();
  args.prompt.resolve();
  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  if (args.query) resolve_position(*args.query, ids.size());
  const RunContext run = context.run();
  const InteractionResult result = model.prepare(ids, run).interactions(args.query, args.all, run);
  run.check();
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(to_terminal(result, terminal_style(args.color)));
}

}  // namespace

void add_interactions(App& app, Context& context) {
  const auto args = std::make_shared<InteractionArguments>();
  Command command =
      app.add("interactions", "How strongly every component is read by every later head and MLP",
              "unpack interactions \"When Mary and John went to the store\" --query -1 --svg "
              "interactions.svg");
  args->prompt.add(command);
  args->model.add(command);
  const Option query = command.option(
      "--query", "P", "One query position (default: the mean over all)", args->query);
  command.flag("--all", "Every query position", args->all).excludes(query);
  args->outputs.add_json(command);
  args->outputs.add(command, "--svg", "Write a heat map of readers and writers");
  add_color(command, args->color);
  command.run([args, &context] { run_interactions(*args, context); });
}

}  // namespace unpack::cli
