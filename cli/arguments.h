// Groups of options that several commands share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "unpack/chat.h"
#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/shard.h"

namespace unpack::cli {

// --model --device --tf32 --threads
struct ModelArguments {
  std::string model = "pocket-gpt2";
  LoadOptions load;

  void add_name(Command& command);
  void add_device(Command& command);  // --device --tf32 --threads alone
  void add(Command& command);
  Model open() const { return Model::load(model, load); }
};

// PROMPT | --ids, --no-bos, --chat and what belongs to it. A prompt of "-", or none where something
// is piped in, is read from stdin.
struct PromptArguments {
  std::optional<std::string> prompt;
  std::optional<std::vector<TokenId>> ids;
  bool no_bos = false;

  void add(Command& command,
           const std::string& help = "The prompt; - (or nothing, in a pipe) reads it from stdin");
  // To be called before the model is loaded: reads stdin where it has to, UsageError when there is
  // no prompt.
  void resolve(bool required = true);
  std::vector<TokenId> encode(const Model& model);

  bool chat = false;
  std::optional<std::string> system, messages, chat_template;
  std::optional<ChatPrompt> made;  // by encode, from a conversation
  std::vector<TokenId> stops() const { return made ? made->stops : std::vector<TokenId>{}; }
};

// --target --target-id --versus --versus-id --raw-logit --position
struct TargetArguments {
  std::optional<std::string> target, versus;
  std::optional<std::vector<TokenId>> target_ids, versus_ids;
  bool raw = false;
  int position = -1;

  void add(Command& command);
  Target tokens(const Model& model) const;  // the position as it was given
  // `length`: of the prompt, so that a position outside it is known before any work.
  Target resolve(const Model& model, int length) const;
};

// All that a trace can be asked: target, --root --reroot, the paths to list, the method and its
// options.
struct QuestionArguments {
  TargetArguments target;
  Question question;
  std::optional<std::size_t> top_paths;
  std::string method = "unpack";

  void add(Command& command);
  Question& check();  // once the command line was read; the target waits for the model
};

// --beta --weights --mlp-weights --dispatch --mlp --scores
void add_method(Command& command, Options& options);

// --shard I/N
void add_shard(Command& command, Shard& shard);

std::string read_stdin();
bool stdin_is_terminal();

}  // namespace unpack::cli
