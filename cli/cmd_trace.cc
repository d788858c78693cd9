#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "unpack/baselines.h"
#include "unpack/error.h"
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
  bool words = false, edges = false;
  Outputs outputs;
  Color color = Color::automatic;
};

// Words beside tokens: the same credit, subword tokens added up.
std::string words_text(const TraceResult& result) {
  std::string text = "\nWords\n";
  for (const WordCredit& word : merge_words(result.tokens, result.token_credit)) {
    text += fmt::format("  {:>+10.4f} {:>+7.1f}%  {}\n", word.credit, word.percent,
                        nlohmann::json(word.text).dump(-1, ' ', false, kReplace));
  }
  return text;
}

// Largest first.
std::vector<EdgeCredit> sorted(std::vector<EdgeCredit> edges) {
  std::stable_sort(edges.begin(), edges.end(), [](const EdgeCredit& a, const EdgeCredit& b) {
    return std::fabs(a.credit) > std::fabs(b.credit);
  });
  return edges;
}

nlohmann::ordered_json edges_json(const Writers& writers, const std::vector<EdgeCredit>& edges) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const EdgeCredit& e : edges) {
    nlohmann::ordered_json branch;
    if (e.branch != Branch::none && e.branch != Branch::mlp) branch = to_string(e.branch);
    out.push_back({{"writer", writers.name(e.writer)},
                   {"reader", e.reader < 0 ? "target" : writers.name(e.reader)},
                   {"branch", branch},
                   {"credit", e.credit}});
  }
  return out;
}

std::string edges_text(const Writers& writers, const std::vector<EdgeCredit>& edges) {
  constexpr std::size_t kShown = 20;
  std::string text = "\nEdges\n";
  for (std::size_t i = 0; i < std::min(kShown, edges.size()); ++i) {
    const EdgeCredit& e = edges[i];
    const std::string branch = to_string(e.branch);
    text += fmt::format("  {:>+10.4f}  {} -{}-> {}\n", e.credit, writers.name(e.writer),
                        e.branch == Branch::mlp || branch.empty() ? "" : "[" + branch + "]",
                        e.reader < 0 ? "target" : writers.name(e.reader));
  }
  return text;
}

void run_trace(TraceArguments& args, Context& context) {
  args.outputs.check();
  Question& question = args.question.check();
  const Method method = parse_method(args.question.method);
  if (args.edges && (method != Method::unpack || question.root))
    throw UsageError("--edges goes with --method unpack and a target, not with --root");
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
  std::vector<EdgeCredit> edges;
  if (args.edges) edges = sorted(prepared.edge_credit(question, run));
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--tikz", [&] { return to_tikz(result); });
  args.outputs.write("--graph", [&] { return to_graph(result, *graph); });
  args.outputs.write("--json", [&] {
    if (!args.words && !args.edges) return to_json(result);
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_json(result));
    if (args.words)
      json["words"] =
          nlohmann::ordered_json::parse(to_json(merge_words(result.tokens, result.token_credit)));
    if (args.edges) json["edges"] = edges_json(model.writers(), edges);
    return json.dump(-1, ' ', false, kReplace);
  });
  if (!args.outputs.any())
    print(to_terminal(result, terminal_style(args.color)) + (args.words ? words_text(result) : "") +
          (args.edges ? edges_text(model.writers(), edges) : ""));
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
  command.flag("--edges",
               "What each reader passes to each writer by each branch, summed over positions, too",
               args->edges);
  add_color(command, args->color);
  command.run([args, &context] { run_trace(*args, context); });
}

}  // namespace unpack::cli
