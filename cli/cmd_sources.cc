#include <fmt/format.h>

#include <limits>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "cost.h"
#include "unpack/error.h"
#include "unpack/given_file.h"
#include "unpack/sources.h"

namespace unpack::cli {
namespace {

struct SourcesArguments {
  std::optional<std::string> question, documents, prompt_template, document_template;
  ModelArguments model;
  SourcesOptions options;
  CostArguments cost;
  Outputs outputs;
  Color color = Color::automatic;
};

std::string read_template(const std::string& file) {
  std::string text = read_given_file(file);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void run_sources(SourcesArguments& args, Context& context) {
  args.outputs.check();
  args.options.options.check();
  if (!args.question) throw UsageError("no question: give it in quotes");
  if (!args.documents)
    throw UsageError("no documents: name a file or a folder of them with --documents");
  args.options.question = *args.question;
  args.options.documents = read_documents(*args.documents);
  if (args.prompt_template) args.options.prompt_template = read_template(*args.prompt_template);
  if (args.document_template)
    args.options.document_template = read_template(*args.document_template) + "\n";
  const Model model = args.model.open();
  const RunContext run = context.run();
  const std::vector<TokenId> prompt = sources_tokens(model, args.options);
  if (args.cost.say(model, prompt, planned_sources(model, prompt.size(), args.options), run))
    return;
  const SourcesResult result = find_sources(model, args.options, run);
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(to_terminal(result, terminal_style(args.color)));
}

}  // namespace

void add_sources(App& app, Context& context) {
  const auto args = std::make_shared<SourcesArguments>();
  Command command = app.add(
      "sources", "Which document, and which sentence of it, every sentence of an answer came from",
      "unpack sources \"Who gave the drink?\" --documents notes/ --html sources.html");
  command.positional("QUESTION", "The question",
                     [args](const std::string& value) { args->question = value; });
  command.option("--documents", "FILE|FOLDER",
                 "Documents: a folder of text files, a text file, or JSON (a list of texts or of "
                 "objects with name and text; .jsonl: one a line)",
                 args->documents);
  const Option answer = command.option(
      "--answer", "TEXT", "The answer to explain (default: the model's own)", args->options.answer);
  command
      .option("--generate", "N",
              fmt::format("Tokens of the model's own answer, at most (default {})",
                          args->options.generate),
              [args](const std::string& value) {
                args->options.generate =
                    parse_integer("--generate", value, 1, std::numeric_limits<int>::max());
              })
      .excludes(answer);
  command.option("--template", "FILE",
                 "The prompt, with {documents} and {question} in it (default: the documents, "
                 "\"Question: ...\", \"Answer:\")",
                 args->prompt_template);
  command.option("--document-template", "FILE",
                 "How a document is written, with {text} and {name} (default: its text and a line "
                 "end)",
                 args->document_template);
  command.flag("--chat", "The prompt is the user's turn and goes through the model's chat template",
               args->options.chat);
  args->model.add(command);
  add_preset(command, args->options.options);
  add_method(command, args->options.options);
  args->outputs.add_json(command);
  args->outputs.add(command, "--html", "Write a page: click a sentence, its sources light up");
  args->cost.add(command);
  add_color(command, args->color);
  command.run([args, &context] { run_sources(*args, context); });
}

}  // namespace unpack::cli
