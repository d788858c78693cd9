// A conversation becomes a prompt: template, tokens, and where every message stands among them.
#include <fmt/format.h>

#include <algorithm>

#include "base/json_reader.h"
#include "base/message.h"
#include "engine/state.h"
#include "unpack/chat.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/model.h"

namespace unpack {
namespace {

using Json = OrderedJson;

bool is_message(const Json& json) {
  return json.is_object() && json.contains("role") && json["role"].is_string();
}

bool is_messages(const Json& json) {
  if (!json.is_array() || json.empty()) return false;
  for (const Json& message : json) {
    if (!is_message(message)) return false;
  }
  return true;
}

// The text of a message's content, which may also be a list of parts.
std::string content_of(const Json& message) {
  if (!message.contains("content")) return {};
  const Json& content = message["content"];
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (content.is_array()) {
    for (const Json& part : content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"].get<std::string>();
    }
  }
  return text;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

Json parse_messages(const Conversation& conversation) {
  Json messages = base::read_ordered_json(conversation.messages, "messages", base::kSmallJson);
  if (!is_messages(messages))
    throw InputError(
        "the conversation is no JSON list of messages: [{\"role\": \"user\", \"content\": "
        "\"...\"}, ...]");
  return messages;
}

// Where the content of every message is, looked for one after the other in the tokens' own bytes.
std::vector<Span> find_turns(const Model& model, const std::vector<TokenId>& ids,
                             const Json& messages) {
  std::string all;
  std::vector<std::size_t> starts;
  for (const TokenId id : ids) {
    starts.push_back(all.size());
    all += model.tokenizer().token_bytes(id);
  }
  std::vector<Span> turns;
  std::size_t from = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string content = trimmed(content_of(messages[i]));
    if (content.empty()) continue;
    const std::size_t at = all.find(content, from);
    if (at == std::string::npos) continue;
    from = at + content.size();
    const auto first = std::upper_bound(starts.begin(), starts.end(), at) - starts.begin() - 1;
    const auto last = std::upper_bound(starts.begin(), starts.end(), from - 1) - starts.begin() - 1;
    turns.push_back({fmt::format("{} {}", messages[i]["role"].get<std::string>(), i + 1),
                     static_cast<int>(first), static_cast<int>(last)});
  }
  return turns;
}

std::vector<TokenId> stop_tokens(const Model& model, const Json& special) {
  std::vector<TokenId> stops;
  if (special.contains("eos_token")) {
    if (const auto id = model.tokenizer().id_of(special["eos_token"].get<std::string>()))
      stops.push_back(*id);
  }
  return stops;
}

}  // namespace

Conversation make_conversation(std::string_view text, const std::optional<std::string>& system,
                               bool only_messages) {
  Conversation conversation;
  Json messages;
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && (text[start] == '[' || text[start] == '{')) {
    Json json;
    try {
      json = base::read_ordered_json(text, "messages", base::kSmallJson);
    } catch (const InputError&) {
      // A text that only begins like JSON; where messages are wanted that is said below.
    }
    if (is_messages(json)) {
      messages = std::move(json);
    } else if (json.is_object() && json.contains("messages")) {
      if (!is_messages(json["messages"]))
        throw InputError("\"messages\" of the conversation is no list of messages with a role");
      messages = json["messages"];
      json.erase("messages");
      conversation.variables = json.dump();
    }
  }
  if (messages.is_null()) {
    if (only_messages)
      throw InputError(
          "messages is no JSON list of messages: [{\"role\": \"user\", \"content\": \"...\"}, "
          "...]");
    if (text.empty()) throw InputError("the conversation is empty");
    // A bad byte is reported by the tokenizer of a plain prompt; JSON would not take it.
    try {
      messages = Json::array({{{"role", "user"}, {"content", std::string(text)}}});
      (void)messages.dump();
    } catch (const Json::exception&) {
      throw InputError("the conversation is not valid UTF-8");
    }
  }
  if (system) {
    if (messages[0]["role"] == "system")
      throw InputError("the conversation has a system message already; leave system out");
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *system}});
  }
  try {
    conversation.messages = messages.dump();
  } catch (const Json::exception&) {
    throw InputError("the system message is not valid UTF-8");
  }
  return conversation;
}

bool has_chat_template(const Model& model) { return !engine::state_of(model)->chat.source.empty(); }

ChatPrompt chat_prompt(const Model& model, const Conversation& conversation) {
  const ChatSource& own = engine::state_of(model)->chat;
  if (!conversation.chat_template && own.source.empty())
    throw InputError(fmt::format(
        "{} has no chat template (tokenizer_config.json, chat_template.jinja); give one as "
        "chat_template, or a prompt without chat",
        model.config().name));
  const ChatTemplate chat_template =
      conversation.chat_template
          ? ChatTemplate::parse(*conversation.chat_template, conversation.template_origin)
          : ChatTemplate::parse(own.source, own.origin);
  const Json messages = parse_messages(conversation);
  const Json special = own.special_tokens.empty()
                           ? Json::object()
                           : base::read_ordered_json(own.special_tokens, own.origin);
  Json variables = special;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  const Json further =
      base::read_ordered_json(conversation.variables, "the variables", base::kSmallJson);
  if (!further.is_object())
    throw InputError("the variables of the conversation are no JSON object");
  for (const auto& [name, value] : further.items()) variables[name] = value;
  variables["messages"] = messages;
  const bool goes_on = messages.back()["role"] == "assistant";
  variables["add_generation_prompt"] = !goes_on;

  ChatPrompt prompt;
  prompt.text = chat_template.render(variables.dump());
  if (goes_on) {
    const std::string content = trimmed(content_of(messages.back()));
    const std::size_t at = content.empty() ? std::string::npos : prompt.text.rfind(content);
    if (at == std::string::npos)
      throw InputError("the last message of the assistant is not in what the template made");
    prompt.text.resize(at + content.size());
  }
  if (prompt.text.empty()) throw InputError("the template made an empty prompt");
  if (conversation.longest > 0 && prompt.text.size() > conversation.longest)
    throw InputError(fmt::format("the prompt has {} bytes, more than the limit of {}",
                                 prompt.text.size(), conversation.longest));
  prompt.ids = model.tokenizer().encode(prompt.text, true);
  prompt.turns = find_turns(model, prompt.ids, messages);
  prompt.stops = stop_tokens(model, special);
  return prompt;
}

std::vector<TokenId> generate_until(const Model& model, std::span<const TokenId> ids,
                                    const SamplingOptions& options,
                                    const std::vector<TokenId>& stops,
                                    const std::function<bool(TokenId)>& emit,
                                    const RunContext& context) {
  bool stopped = false;
  std::vector<TokenId> out = model.generate(
      ids, options,
      [&](TokenId id) {
        stopped = std::find(stops.begin(), stops.end(), id) != stops.end();
        return !stopped && (!emit || emit(id));
      },
      context);
  if (stopped) out.pop_back();
  return out;
}

}  // namespace unpack
