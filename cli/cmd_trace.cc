#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "cost.h"
#include "unpack/baselines.h"
#include "unpack/circuit.h"
#include "unpack/error.h"
#include "unpack/explain.h"
#include "unpack/groups.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack::cli {
namespace {

struct TraceArguments {
  PromptArguments prompt;
  ModelArguments model;
  QuestionArguments question;
  bool words = false, edges = false;
  CostArguments cost;
  Outputs outputs;
  Color color = Color::automatic;
};

constexpr int kSentences = 5;

// Words beside tokens: the same credit, subword tokens added up; and the trace in sentences.
std::string words_text(const TraceResult& result, const std::vector<Sentence>& sentences) {
  std::string text = "\nWords\n";
  for (const WordCredit& word : merge_words(result.tokens, result.token_credit)) {
    text +=
        fmt::format("  {:>+10.4f} {:>+7.1f}%  {}\n", word.credit, word.percent, quoted(word.text));
  }
  if (!sentences.empty()) text += "\nIn words\n";
  for (const Sentence& sentence : sentences) text += "  " + sentence.text + "\n";
  return text;
}

// Largest first.
std::vector<EdgeCredit> sorted(std::vector<EdgeCredit> edges) {
  std::stable_sort(edges.begin(), edges.end(), [](const EdgeCredit& a, const EdgeCredit& b) {
    return std::fabs(a.credit) > std::fabs(b.credit);
  });
  return edges;
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

// Targets of several tokens.
void run_answer(TraceArguments& args, const Asked& asked, const Model& model,
                const RunContext& run) {
  const AnswerTokens tokens = answer_tokens(asked, model, args.prompt.made);
  const Planned planned = planned_question(args.prompt.made, asked.question, tokens);
  if (args.cost.say(model, args.prompt.made.ids, planned, run)) return;
  const AnswerResult result =
      explain_answer(model, args.prompt.made, tokens, asked.question.options, run);
  run.check();
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(to_terminal(result, terminal_style(args.color)));
}

// What of the command does not go with an answer.
void check_outputs(const TraceArguments& args) {
  if (!args.question.has("answer")) return;
  if (args.words || args.edges)
    throw UsageError(fmt::format("{} does not go with answer, which explains a span of tokens",
                                 args.words ? "words" : "edges"));
  for (const char* name : {"--html", "--svg", "--tikz", "--graph", "--neuronpedia"}) {
    if (const auto* file = args.outputs.find(name); file && *file)
      throw UsageError(fmt::format("{} does not go with answer; json does", field_name(name)));
  }
}

void run_trace(TraceArguments& args, Context& context) {
  args.outputs.check();
  args.question.check(args.prompt.is_chat());
  std::optional<GraphFormat> graph;
  if (const auto* file = args.outputs.find("--graph"); *file) graph = graph_format(**file);
  args.prompt.resolve();
  check_outputs(args);

  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  // What names a place in the prompt or the model is looked up before any work.
  const Asked asked = args.question.resolve(model, ids.size());
  if (asked.answer) return run_answer(args, asked, model, context.run());
  const std::vector<Span> spans = spans_of(asked, model, args.prompt.made);
  if (args.edges && (asked.method != Method::unpack || asked.question.root))
    throw UsageError("edges go with the method unpack and a target, not with a root");

  const RunContext run = context.run();
  if (args.cost.say(model, ids, planned_question(args.prompt.made, asked.question), run)) return;
  const Prepared prepared = model.prepare(ids, run);
  const TraceResult result = asked.method == Method::unpack
                                 ? prepared.trace(asked.question, run)
                                 : baseline(prepared, asked.question.target, asked.method, run);
  std::vector<EdgeCredit> edges;
  if (args.edges) edges = sorted(prepared.edge_credit(asked.question, run));
  std::vector<Sentence> sentences;
  if (args.words && asked.method == Method::unpack)
    sentences = explain(prepared, asked.question, result, kSentences, run);
  run.check();
  args.outputs.write("--html", [&] { return to_html(result); });
  args.outputs.write("--svg", [&] { return to_svg(result); });
  args.outputs.write("--tikz", [&] { return to_tikz(result); });
  args.outputs.write("--graph", [&] { return to_graph(result, *graph); });
  args.outputs.write("--neuronpedia", [&] { return to_neuronpedia(result); });
  std::vector<SpanCredit> groups;
  if (!spans.empty()) groups = span_credits(spans, result.tokens, result.token_credit);
  args.outputs.write("--json", [&] {
    return to_json(
        result, {.words = args.words,
                 .edges = args.edges ? &edges : nullptr,
                 .groups = groups.empty() ? nullptr : &groups,
                 .sentences = args.words && asked.method == Method::unpack ? &sentences : nullptr});
  });
  if (!args.outputs.any())
    print(to_terminal(result, terminal_style(args.color)) +
          (args.words ? words_text(result, sentences) : "") +
          (args.edges ? edges_text(model.writers(), edges) : "") +
          (groups.empty() ? "" : to_text(groups)));
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
  args->outputs.add(command, "--neuronpedia", "Write them as an attribution graph for Neuronpedia");
  args->question.add_answer(command);
  command.flag("--words",
               "In words, too: the credit of subword tokens by word, and what the strongest "
               "components do in sentences",
               args->words);
  command.flag("--edges",
               "What each reader passes to each writer by each branch, summed over positions, too",
               args->edges);
  args->cost.add(command);
  add_color(command, args->color);
  command.run([args, &context] { run_trace(*args, context); });
}

}  // namespace unpack::cli
