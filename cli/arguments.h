// Groups of options that several commands share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "unpack/ask.h"
#include "unpack/model.h"
#include "unpack/question.h"
#include "unpack/shard.h"

namespace unpack::cli {

// --model --no-mmap --device --tf32 --exact-fp32 --threads
struct ModelArguments {
  std::string model = "pocket-gpt2";
  LoadOptions load;
  bool no_mmap = false;

  void add_name(Command& command);
  void add_device(Command& command);  // without the model
  void add(Command& command);
  LoadOptions options() const;  // as they were given
  Model open() const { return Model::load(model, options()); }
};

// --chat and what belongs to it.
struct ChatArguments {
  bool chat = false;
  std::optional<std::string> system, chat_template;  // the latter a file

  void add(Command& command);
  ChatSettings settings() const;
  void read_template(ChatSettings& settings) const;
};

// PROMPT | --ids, --no-bos, --messages, and the options of a conversation. A prompt of "-", or none
// where something is piped in, is read from stdin.
struct PromptArguments : ChatArguments {
  std::optional<std::string> prompt;
  std::optional<std::vector<TokenId>> ids;
  bool no_bos = false;

  void add(Command& command,
           const std::string& help = "The prompt; - (or nothing, in a pipe) reads it from stdin");
  // To be called before the model is loaded: reads stdin where it has to, UsageError when there is
  // no prompt.
  void resolve(bool required = true);
  bool is_chat() const { return given().is_chat(); }
  const std::vector<TokenId>& encode(const Model& model);

  std::optional<std::string> messages;  // a file
  MadePrompt made;                      // by encode

 private:
  GivenPrompt given() const;
  std::string conversation_;  // what stands in that file
};

// Options that are fields of a question: its codec reads them.
class QuestionArguments {
 public:
  void add_target(
      Command& command);       // --target --target-id --versus --versus-id --raw-logit --position
  void add(Command& command);  // all that a trace can be asked
  void add_answer(Command& command);  // --answer --versus-answer --group --group-by

  // What can be known before there is a model. `chat`: the prompt is a conversation.
  void check(bool chat = false) const { check_fields(given(), chat); }
  Asked read(const Model& model) const;
  Asked resolve(const Model& model, int length) const;  // and checked against the prompt
  bool has(std::string_view name) const { return find_field(given(), name) != nullptr; }

 private:
  Fields given() const;
  Option field(Command& command, const std::string& name, const std::string& type,
               const std::string& help);
  Fields fields_;
  bool raw_logit_ = false;
  std::vector<std::string> groups_;
};

// --preset, which comes before every other option of the method: those beside it override it.
void add_preset(Command& command, Options& options, const std::string& preset = kDefaultPreset);
// --beta --weights --mlp-weights --dispatch --mlp --scores --direction --floor --keys
void add_method(Command& command, Options& options);

// --shard I/N
void add_shard(Command& command, Shard& shard);

std::string read_stdin();
bool stdin_is_terminal();

}  // namespace unpack::cli
