#include <fmt/format.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/baselines.h"
#include "unpack/error.h"
#include "unpack/groups.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

struct TraceArguments {
  PromptArguments prompt;
  ModelArguments model;
  QuestionArguments question;
  bool words = false;
  Outputs outputs;
  Color color = Color::automatic;
};

// Words beside tokens: the same credit, subword tokens added up.
std::string words_text(const TraceResult& result) {
  std::string text = "\nWords\n";
  for (const WordCredit& word : merge_words(result.tokens, result.token_credit)) {
    text +=
        fmt::format("  {:>+10.4f} {:>+7.1f}%  {}\n", word.credit, word.percent, quoted(word.text));
  }
  return text;
}

void run_trace(TraceArguments& args, Context& context) {
  args.outputs.check();
  args.question.check();
  std::optional<GraphFormat> graph;
  if (const auto* file = args.outputs.find("--graph"); *file) graph = graph_format(**file);
  args.prompt.resolve();

  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  // What names a place in the prompt or the model is looked up before any work.
  const Asked& asked = args.question.resolve(model, static_cast<int>(ids.size()));

  const RunContext run = context.run();
  const Prepared prepared = model.prepare(ids, run);
  const TraceResult result = asked.method == Method::unpack
                                 ? prepared.trace(asked.question, run)
                                 : baseline(prepared, asked.question.target, asked.method, run);
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--tikz", [&] { return to_tikz(result); });
  args.outputs.write("--graph", [&] { return to_graph(result, *graph); });
  args.outputs.write("--json", [&] { return to_json(result, {.words = args.words}); });
  if (!args.outputs.any())
    print(to_terminal(result, terminal_style(args.color)) + (args.words ? words_text(result) : ""));
}

}  // namespace

void add_trace(App& app, Context& context) {
  const auto args = std::make_shared<TraceArguments>();
  Command command = app.add("trace", "Which tokens, components and paths a prediction comes from",
                            "unpack trace \"Mary and John went to the store. John gave a drink "
                            "to\" --target \" Mary\" --versus \" John\"");
  args->prompt.add(command);
  args->model.add(command);
  args->question.add(command);
  args->outputs.add_json(command);
  args->outputs.add(command, "--html", "Write a self-contained page");
  args->outputs.add(command, "--svg", "Write a picture of the paths");
  args->outputs.add(command, "--tikz", "Write the same picture for LaTeX");
  args->outputs.add_file(command, "--graph",
                         "Write the listed paths as a graph: .graphml, .dot or .json");
  command.flag("--words", "Add up the credit of subword tokens by word, too", args->words);
  add_color(command, args->color);
  command.run([args, &context] { run_trace(*args, context); });
}

}  // namespace unpack::cli
