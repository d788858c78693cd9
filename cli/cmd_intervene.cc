#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/choice.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack::cli {
namespace {

struct InterveneArguments {
  PromptArguments prompt;
  ModelArguments model;
  QuestionArguments target;
  Intervention change;
  std::optional<Ablation> ablation;
  std::optional<double> scale;
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
  InterventionReading change{r.cut.nll - r.clean.nll,
                             r.cut.target - r.clean.target,
                             r.cut.probability - r.clean.probability,
                             {}};
  return fmt::format("Target \"{}\" after position {}\n  {:<8} {:>12} {:>14} {:>13}\n",
                     r.target.text, r.target.position, "", "nll", "logit diff.", "probability") +
         line("clean", r.clean) + line("changed", r.cut) + line("change", change);
}

// A component named with --cut is hidden from its readers; beside --ablate or --scale it is what is
// ablated.
void read_ablation(InterveneArguments& args) {
  const bool wanted = args.ablation || args.scale;
  if (wanted && args.change.cut) {
    args.change.ablate.push_back(*args.change.cut);
    args.change.cut.reset();
  }
  if (wanted && args.change.ablate.empty() && !args.change.keep)
    throw UsageError("ablate and scale need components, such as A5.H3 or MLP2@7");
  args.change.ablation = args.ablation.value_or(Ablation::zero);
  args.change.scale = args.scale.value_or(0);
}

void run_intervene(InterveneArguments& args, Context& context) {
  args.outputs.check();
  read_ablation(args);
  args.target.check();
  args.prompt.resolve();
  const Model model = args.model.open();
  const std::vector<TokenId> ids = args.prompt.encode(model);
  if (args.edge) args.change.edges = {*args.edge};
  if (args.patch_from)
    args.change.patch_from = model.encode_prompt(*args.patch_from, args.prompt.no_bos);
  if (args.patch_ids) args.change.patch_from = *args.patch_ids;
  if (args.zero) args.change.zero = *args.zero;
  const RunContext run = context.run();
  const Asked asked = args.target.resolve(model, ids.size());
  const InterventionResult result = intervene(model, ids, args.change, asked.question.target, run);
  run.check();
  args.outputs.write("--json", [&] { return to_json(result); });
  if (!args.outputs.any()) print(summary(result));
}

}  // namespace

void add_intervene(App& app, Context& context) {
  const auto args = std::make_shared<InterveneArguments>();
  Command command = app.add("intervene",
                            "What changes when a component's output is ablated or scaled, a "
                            "component is hidden from its readers, an edge is patched, or an "
                            "embedding zeroed",
                            "unpack intervene \"Mary and John went to the store. John gave a drink "
                            "to\" --component A5.H3 --ablate zero --target \" Mary\" --versus \" "
                            "John\"");
  args->prompt.add(command);
  args->model.add(command);
  args->target.add_target(command);
  command.option("--component", "C,C@P,...",
                 "Components to ablate, at every position (A5.H3) or at one (MLP2@7)",
                 [args](const std::string& text) {
                   args->change.ablate.clear();
                   for (std::size_t at = 0; at <= text.size();) {
                     const std::size_t end = std::min(text.find(',', at), text.size());
                     args->change.ablate.push_back(text.substr(at, end - at));
                     at = end + 1;
                   }
                 });
  command.choice(
      "--ablate",
      "What they write instead: nothing, their mean over the prompt's positions, or what "
      "they write in the prompt of --patch-from (default zero)",
      args->ablation, words_of(kAblations));
  command.flag("--keep",
               "The other way round: the components of --component stay, and every other head and "
               "MLP is ablated",
               args->change.keep);
  command.option(
      "--scale", "X",
      "How much of the original stays: 0 ablates (default), 1 changes nothing, 2 doubles",
      args->scale);
  command.option(
      "--cut", "COMPONENT",
      "Hide this component from its readers (what it writes to the output stays): A3.H1, "
      "MLP0, emb; with --ablate: the component to ablate",
      args->change.cut);
  command.choice("--channel", "Which readers: attention or MLP sublayers (default attention)",
                 args->change.channel, words_of(kChannels));
  command.option(
      "--edge", "EDGE",
      "Patch one edge from another prompt: \"A5.H1@9 -[K]-> A7.H2@13\", \"MLP0@9 -> target\"",
      args->edge);
  const Option text = command.option("--patch-from", "PROMPT",
                                     "The prompt, of as many tokens, that the edge (or what "
                                     "--ablate resample writes) is taken from",
                                     args->patch_from);
  command.option("--patch-ids", "N,N,...", "The same by token ids", args->patch_ids).excludes(text);
  command.option("--zero", "P,P,...", "Set the token embeddings at these positions to zero",
                 args->zero);
  args->outputs.add_json(command);
  command.run([args, &context] { run_intervene(*args, context); });
}

}  // namespace unpack::cli
