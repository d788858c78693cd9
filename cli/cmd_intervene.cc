#include <fmt/format.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack::cli {
namespace {

struct InterveneArguments {
  PromptArguments prompt;
  ModelArguments model;
  QuestionArguments target;
  Intervention change;
  std::optional<std::string> edge, patch_from;
  std::optional<std::vector<int>> zero;
  std::optional<std::vector<TokenId>> patch_ids;
  Outputs outputs;
};

std::string summary(const InterventionResult& r) {
  const auto line = [](const char* name, const InterventionReading& x) {
    return fmt::format("  {:<8} {:>12.5f} {:>14.5f} {:>13.5f}\n", name, x.nll, x.target,
                       x.probability);
  };
  InterventionReading change{r.cut.nll - r.clean.nll, r.cut.target - r.clean.target,
                             r.cut.probability - r.clean.probability};
  return fmt::format("Target \"{}\" after position {}\n  {:<8} {:>12} {:>14} {:>13}\n",
                     r.target.text, r.target.position, "", "nll", "logit diff.", "probability") +
         line("clean", r.clean) + line("changed", r.cut) + line("change", change);
}

void run_intervene(InterveneArguments& args, Context& context) {
  args.outputs.check();
  args.prompt.resolve();
  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  if (args.edge) args.change.edges = {*args.edge};
  if (args.patch_from)
    args.change.patch_from = model.encode_prompt(*args.patch_from, args.prompt.no_bos);
  if (args.patch_ids) args.change.patch_from = *args.patch_ids;
  if (args.zero) args.change.zero = *args.zero;
  const RunContext run = context.run();
  const Asked& asked = args.target.resolve(model, static_cast<int>(ids.size()));
  const InterventionResult result = intervene(model, ids, args.change, asked.question.target, run);
  run.check();
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(summary(result));
}

}  // namespace

void add_intervene(App& app, Context& context) {
  const auto args = std::make_shared<InterveneArguments>();
  Command command = app.add("intervene",
                            "What changes when a component is hidden from its readers, an edge is "
                            "patched, or an embedding zeroed",
                            "unpack intervene \"Mary and John went to the store. John gave a drink "
                            "to\" --cut MLP0 --channel attention --target \" Mary\"");
  args->prompt.add(command);
  args->model.add(command);
  args->target.add_target(command);
  command.option("--cut", "COMPONENT",
                 "Subtract what this component wrote where its readers look: A3.H1, MLP0, emb",
                 args->change.cut);
  command.choice("--channel", "Which readers: attention or MLP sublayers (default attention)",
                 args->change.channel, {{"attention", Channel::attention}, {"mlp", Channel::mlp}});
  command.option(
      "--edge", "EDGE",
      "Patch one edge from another prompt: \"A5.H1@9 -[K]-> A7.H2@13\", \"MLP0@9 -> target\"",
      args->edge);
  const Option text = command.option("--patch-from", "PROMPT",
                                     "The prompt, of as many tokens, that the edge is taken from",
                                     args->patch_from);
  command.option("--patch-ids", "N,N,...", "The same by token ids", args->patch_ids).excludes(text);
  command.option("--zero", "P,P,...", "Set the token embeddings at these positions to zero",
                 args->zero);
  args->outputs.add_json(command);
  command.run([args, &context] { run_intervene(*args, context); });
}

}  // namespace unpack::cli
