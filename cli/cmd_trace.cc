#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "unpack/baselines.h"
#include "unpack/error.h"
#include "unpack/explain.h"
#include "unpack/groups.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

struct TraceArguments {
  PromptArguments prompt;
  ModelArguments model;
  QuestionArguments question;
  bool words = false;
  Outputs outputs;
  Color color = Color::automatic;
};

constexpr int kSentences = 5;

// Words beside tokens: the same credit, subword tokens added up; and the trace in sentences.
std::string words_text(const TraceResult& result, const std::vector<Sentence>& sentences) {
  std::string text = "\nWords\n";
  for (const WordCredit& word : merge_words(result.tokens, result.token_credit)) {
    text += fmt::format("  {:>+10.4f} {:>+7.1f}%  {}\n", word.credit, word.percent,
                        nlohmann::json(word.text).dump(-1, ' ', false, kReplace));
  }
  if (!sentences.empty()) text += "\nIn words\n";
  for (const Sentence& sentence : sentences) text += "  " + sentence.text + "\n";
  return text;
}

std::string json_with_words(const TraceResult& result, const std::vector<Sentence>& sentences) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_json(result));
  json["words"] =
      nlohmann::ordered_json::parse(to_json(merge_words(result.tokens, result.token_credit)));
  if (result.method == "unpack")
    json["sentences"] = nlohmann::ordered_json::parse(to_json(sentences, result.writer_table()));
  return json.dump(-1, ' ', false, kReplace);
}

void run_trace(TraceArguments& args, Context& context) {
  args.outputs.check();
  Question& question = args.question.check();
  const Method method = parse_method(args.question.method);
  std::optional<GraphFormat> graph;
  if (const auto* file = args.outputs.find("--graph"); *file) graph = graph_format(**file);
  args.prompt.resolve();

  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  const int length = static_cast<int>(ids.size());
  // What names a place in the prompt or the model is looked up before any work.
  question.target = args.question.target.resolve(model, length);
  if (question.root) parse_node(model.writers(), *question.root, length);
  if (question.paths.through) model.writers().parse(*question.paths.through);

  const RunContext run = context.run();
  const Prepared prepared = model.prepare(ids, run);
  const TraceResult result = method == Method::unpack
                                 ? prepared.trace(question, run)
                                 : baseline(prepared, question.target, method, run);
  std::vector<Sentence> sentences;
  if (args.words && method == Method::unpack)
    sentences = explain(prepared, question, result, kSentences, run);
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--tikz", [&] { return to_tikz(result); });
  args.outputs.write("--graph", [&] { return to_graph(result, *graph); });
  args.outputs.write(
      "--json", [&] { return args.words ? json_with_words(result, sentences) : to_json(result); });
  if (!args.outputs.any())
    print(to_terminal(result, terminal_style(args.color)) +
          (args.words ? words_text(result, sentences) : ""));
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
  command.flag("--words",
               "In words, too: the credit of subword tokens by word, and what the strongest "
               "components do in sentences",
               args->words);
  add_color(command, args->color);
  command.run([args, &context] { run_trace(*args, context); });
}

}  // namespace unpack::cli
