#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/chat.h"
#include "unpack/error.h"

namespace unpack::cli {
namespace {

constexpr int kMostTokens = std::numeric_limits<int>::max();

struct GenerateArguments {
  PromptArguments prompt;
  ModelArguments model;
  SamplingOptions sampling;
};

// How many bytes at the end of `text` begin a character that is not complete yet.
std::size_t open_bytes(const std::string& text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const unsigned char byte = text[text.size() - back];
    if ((byte & 0xC0) == 0x80)
      continue;  // inside a character: look further back for its first byte
    const std::size_t needs = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return needs > back ? back : 0;
  }
  return 0;
}

// Prints text as it is made. A token may end inside a character, so what is decoded is the whole
// sequence, less what was printed.
void stream_text(const Model& model, const GenerateArguments& args,
                 const std::vector<TokenId>& prompt, const RunContext& run) {
  std::vector<TokenId> all = prompt;
  const std::size_t start = model.tokenizer().decode(prompt).size();
  std::size_t printed = start;
  const auto emit = [&](TokenId id) {
    all.push_back(id);
    const std::string text = model.tokenizer().decode(all);
    const std::size_t end = text.size() - open_bytes(text);
    if (end > printed) {
      print(std::string_view(text).substr(printed, end - printed));
      printed = end;
    }
    return true;
  };
  model.check(prompt);  // what is refused is not printed
  if (args.prompt.chat) {
    // Of a conversation only the model's turn is shown.
  } else if (args.prompt.prompt) {
    print(*args.prompt.prompt);
  } else {
    print(model.tokenizer().decode(prompt));
  }
  generate_until(model, prompt, args.sampling, args.prompt.made.stops, emit, run);
  print("\n");
}

void run_generate(GenerateArguments& args, Context& context) {
  args.prompt.resolve();
  const Model model = args.model.open();
  const std::vector<TokenId> prompt = args.prompt.encode(model);
  const RunContext run = context.run();
  if (model.has_tokenizer()) {
    stream_text(model, args, prompt, run);
  } else {
    print(fmt::format("{}\n", fmt::join(model.generate(prompt, args.sampling, {}, run), ",")));
  }
}

}  // namespace

void add_generate(App& app, Context& context) {
  const auto args = std::make_shared<GenerateArguments>();
  SamplingOptions& sampling = args->sampling;
  Command command =
      app.add("generate", "Continue a prompt with the model's own words",
              "unpack generate \"Once upon a time\" --temperature 0.8 --top-k 40 --seed 7");
  args->prompt.add(command);
  args->model.add(command);
  command.option("--max-tokens", "N",
                 fmt::format("How many tokens at most (default {})", sampling.max_tokens),
                 [&sampling](const std::string& text) {
                   sampling.max_tokens = parse_integer("--max-tokens", text, 1, kMostTokens);
                 });
  command.option("--temperature", "T",
                 "0 takes the likeliest token each time (default), 1 samples as the model says",
                 [&sampling](const std::string& text) {
                   parse_value("--temperature", text, sampling.temperature);
                   sampling.check();
                 });
  command.option("--top-k", "K", "Sample from the K likeliest tokens only",
                 [&sampling](const std::string& text) {
                   sampling.top_k = parse_integer("--top-k", text, 1, kMostTokens);
                 });
  command.option("--seed", "S",
                 fmt::format("The same seed samples the same text (default {})", sampling.seed),
                 sampling.seed);
  command.run([args, &context] { run_generate(*args, context); });
}

}  // namespace unpack::cli
