// Conversations as the text that a model was trained on, through its chat template.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"
#include "unpack/model.h"
#include "unpack/spans.h"

namespace unpack {

// A template in the subset of Jinja that chat templates use, read as transformers reads it:
// docs/chat.md lists what is understood. What is not is named in an InputError.
class ChatTemplate {
 public:
  static ChatTemplate parse(std::string_view source, const std::string& origin);

  // `variables`: a JSON object with everything that the template may name (messages,
  // add_generation_prompt, bos_token, ...). A template that loops for too long is stopped.
  std::string render(std::string_view variables) const;
  const std::string& origin() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// What is known about chatting with a model.
struct ChatSource {
  std::string source;  // of the template; empty: there is none
  std::string origin;  // the file it came from
  std::string
      special_tokens;  // a JSON object: bos_token, eos_token, ... as the template names them
};
// tokenizer_config.json, chat_template.jinja or chat_template.json of a folder.
ChatSource read_chat_source(const std::filesystem::path& folder);

struct Conversation {
  std::string messages;          // JSON: [{"role": "user", "content": "..."}, ...]
  std::string variables = "{}";  // JSON object: further names for the template, such as tools
  std::optional<std::string> chat_template;  // in place of the model's own
  std::string template_origin = "the chat template";
  std::size_t longest = 0;  // bytes of what the template makes, at most; 0: no limit
};
// A JSON list of messages, or an object with `messages` and further names, is taken as it is; any
// other text becomes the user's turn, unless only messages will do. `system` goes in front.
Conversation make_conversation(std::string_view text, const std::optional<std::string>& system,
                               bool only_messages = false);

bool has_chat_template(const Model& model);

struct ChatPrompt {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<Span> turns;     // where the content of every message stands, "user 1", ...
  std::vector<TokenId> stops;  // what ends the model's turn
};
// The prompt up to where the model's turn begins; where the last message is the assistant's own,
// up to the end of its content.
ChatPrompt chat_prompt(const Model& model, const Conversation& conversation);
// Model::generate that also ends at any of `stops`, which is not part of the text then.
std::vector<TokenId> generate_until(const Model& model, std::span<const TokenId> ids,
                                    const SamplingOptions& options,
                                    const std::vector<TokenId>& stops,
                                    const std::function<bool(TokenId)>& emit = {},
                                    const RunContext& context = {});

}  // namespace unpack
