#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "cost.h"
#include "unpack/chat.h"
#include "unpack/error.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

constexpr int kAnyInt = std::numeric_limits<int>::max();

struct AttributeArguments {
  PromptArguments prompt;
  ModelArguments model;
  std::optional<std::string> continuation;
  int generate = kAttributedTokens;
  Options options;
  CostArguments cost;
  Outputs outputs;
  Color color = Color::automatic;
};

void run_attribute(AttributeArguments& args, Context& context) {
  args.outputs.check();
  args.prompt.resolve();
  const Model model = args.model.open();
  const RunContext run = context.run();
  const std::vector<TokenId> prompt = args.prompt.encode(model);
  std::vector<TokenId> continuation;
  if (args.continuation) continuation = encode_after(model, args.prompt.made, *args.continuation);
  const int rows =
      args.continuation
          ? static_cast<int>(continuation.size())
          : std::min(args.generate, model.config().n_ctx - static_cast<int>(prompt.size()));
  if (rows > 0 &&
      args.cost.say(model, prompt, planned_answer(prompt.size(), rows, 0, args.options), run))
    return;
  if (!args.continuation) {
    SamplingOptions sampling;
    sampling.max_tokens = args.generate;
    continuation = generate_until(model, prompt, sampling, args.prompt.made.stops, {}, run);
  }
  if (continuation.empty())
    throw InputError(args.continuation
                         ? "the continuation has no tokens: give it a text"
                         : "the model ends the text at once, or its context is full: give a "
                           "continuation, or another prompt");
  const AttributeResult result = attribute(model, prompt, continuation, args.options, run);
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(to_terminal(result, terminal_style(args.color)));
}

}  // namespace

void add_attribute(App& app, Context& context) {
  const auto args = std::make_shared<AttributeArguments>();
  Command command =
      app.add("attribute", "The token credit of every token of a continuation, given or generated",
              "unpack attribute \"Mary and John went to the store. John gave\" --continuation \" a "
              "drink to Mary\" --html attribute.html");
  args->prompt.add(command);
  args->model.add(command);
  const Option text = command.option("--continuation", "TEXT", "Explain the tokens of this text",
                                     args->continuation);
  command
      .option("--generate", "N",
              fmt::format("Explain N tokens of the model's own, greedily chosen (default {})",
                          args->generate),
              [args](const std::string& value) {
                args->generate = parse_integer("--generate", value, 1, kAnyInt);
              })
      .excludes(text);
  add_preset(command, args->options);
  add_method(command, args->options);
  args->outputs.add_json(command);
  args->outputs.add(command, "--html", "Write a self-contained page");
  args->outputs.add(command, "--svg", "Write the matrix as a picture");
  args->cost.add(command);
  add_color(command, args->color);
  command.run([args, &context] { run_attribute(*args, context); });
}

}  // namespace unpack::cli
