// Where a folder keeps its chat template.
#include "chat/source.h"

#include <fmt/format.h>

#include "base/json_reader.h"
#include "base/message.h"
#include "model/checkpoint.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack {
namespace fs = std::filesystem;
namespace {

// A template as text, or several by name, of which "default" is the one to chat with.
std::string template_text(const JsonValue& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return {};
  for (const JsonValue& entry : value) {
    if (entry.is_object() && entry.value("name", JsonValue()) == "default" &&
        entry.contains("template") && entry["template"].is_string())
      return entry["template"].get<std::string>();
  }
  return {};
}

}  // namespace

ChatSource chat::gguf_chat_source(const model::GgufFiles& gguf) {
  ChatSource chat;
  const JsonValue& metadata = gguf.content.metadata;
  chat.origin = gguf.path.string() + ": tokenizer.chat_template";
  if (const auto it = metadata.find("tokenizer.chat_template"); it != metadata.end())
    chat.source = template_text(*it);
  JsonValue tokens = JsonValue::object();
  const auto list = metadata.find("tokenizer.ggml.tokens");
  for (const char* name : {"bos", "eos", "unknown", "padding"}) {
    const auto id = metadata.find(fmt::format("tokenizer.ggml.{}_token_id", name));
    if (list == metadata.end() || id == metadata.end() || !id->is_number_unsigned()) continue;
    if (id->get<std::uint64_t>() >= list->size()) continue;
    const std::string_view short_name(name);
    tokens[fmt::format("{}_token", short_name == "unknown"   ? "unk"
                                   : short_name == "padding" ? "pad"
                                                             : short_name)] =
        (*list)[id->get<std::size_t>()];
  }
  chat.special_tokens = tokens.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
  return chat;
}

ChatSource read_chat_source(const fs::path& folder) {
  ChatSource chat;
  JsonValue tokens = JsonValue::object();
  if (const fs::path file = model::find_gguf(folder); !file.empty())
    return chat::gguf_chat_source(*model::open_gguf(file));
  std::error_code error;
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::is_regular_file(config, error)) {
    const JsonValue json = base::read_json(model::read_text_file(config), config.string());
    if (json.is_object()) {
      for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token",
                               "cls_token", "mask_token"}) {
        if (!json.contains(name)) continue;
        const JsonValue& token = json[name];
        if (token.is_string()) tokens[name] = token;
        if (token.is_object() && token.contains("content") && token["content"].is_string())
          tokens[name] = token["content"];
      }
      if (json.contains("chat_template")) {
        chat.source = template_text(json["chat_template"]);
        chat.origin = config.string() + ": chat_template";
      }
    }
  }
  // A file of its own goes before the entry in tokenizer_config.json, as in transformers.
  if (const fs::path file = folder / "chat_template.json"; fs::is_regular_file(file, error)) {
    const JsonValue json = base::read_json(model::read_text_file(file), file.string());
    if (json.is_object() && json.contains("chat_template")) {
      chat.source = template_text(json["chat_template"]);
      chat.origin = file.string();
    }
  }
  if (const fs::path file = folder / "chat_template.jinja"; fs::is_regular_file(file, error)) {
    chat.source = model::read_text_file(file);
    chat.origin = file.string();
  }
  chat.special_tokens = tokens.dump();
  return chat;
}

}  // namespace unpack
