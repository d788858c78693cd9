#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "arguments.h"
#include "commands.h"
#include "unpack/prepared.h"

namespace unpack::cli {
namespace {

constexpr const char* kDefaultPrompt = "Mary and John went to the store. John gave a drink to";
constexpr int kDefaultLength = 12;  // of the ids for a model without a tokenizer

struct ValidateArguments {
  PromptArguments prompt;
  ModelArguments model;
};

std::vector<TokenId> choose_ids(PromptArguments& prompt, const Model& model) {
  if (!prompt.prompt && !prompt.ids && !prompt.messages) {
    if (model.has_tokenizer()) {
      prompt.prompt = kDefaultPrompt;
    } else {
      std::vector<TokenId> ids(
          std::min({kDefaultLength, model.config().n_ctx, model.config().vocab_size}));
      std::iota(ids.begin(), ids.end(), 0);
      return ids;
    }
  }
  return prompt.encode(model);
}

void run_validate(ValidateArguments& args, Context& context) {
  args.prompt.resolve(false);
  const Model model = args.model.open();
  const std::vector<TokenId> ids = choose_ids(args.prompt, model);
  const RunContext run = context.run();
  const std::vector<ClosureCheck> checks = model.prepare(ids, run).validate(run);
  run.check();
  std::string text = fmt::format(
      "{}, {} tokens: what the components add up to, against what the model computed\n\n",
      model.info().name, ids.size());
  text += fmt::format("  {:<12} {:>14} {:>10}\n", "closure of", "largest error", "limit");
  for (const ClosureCheck& check : checks) {
    text += fmt::format("  {:<12} {:>14.2e} {:>10.0e}  {}\n", check.name, check.error, check.limit,
                        check.passed() ? "ok" : "FAILED");
    if (!check.passed()) context.status = 1;
  }
  print(text);
}

}  // namespace

void add_validate(App& app, Context& context) {
  const auto args = std::make_shared<ValidateArguments>();
  Command command = app.add(
      "validate", "Check that the decomposition of a prompt adds up to what the model computed",
      "unpack validate --model pocket-neox \"The capital of France is\"");
  args->prompt.add(command, "The prompt; - reads it from stdin (default: a sentence of our own)");
  args->model.add(command);
  command.run([args, &context] { run_validate(*args, context); });
}

}  // namespace unpack::cli
