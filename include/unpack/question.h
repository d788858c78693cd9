// The one codec of a question: from named fields to what the engine is asked, and back. The command
// line, batch files, the server and Python all read through it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "unpack/baselines.h"
#include "unpack/fields.h"
#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/spans.h"

namespace unpack {

// How a prompt becomes a conversation (unpack/chat.h). A template or messages imply `on`.
struct ChatSettings {
  bool on = false;
  std::optional<std::string> system;
  std::optional<std::string> chat_template;  // its text, in place of the model's own
  std::string template_origin = "chat_template";
};

// An answer of several tokens: a text, or ids.
using AnswerGiven = std::variant<std::string, std::vector<TokenId>>;

// A question with all that stands around it.
struct Asked {
  Asked() { question.options = default_options(); }

  Question question;
  std::optional<std::size_t> top_paths;  // nothing: 20, or with a threshold all above it
  Method method = Method::unpack;
  bool no_bos = false;
  ChatSettings chat;
  std::optional<AnswerGiven> answer, versus_answer;  // in place of a target and its contrast
  std::vector<std::string> groups;                   // NAME=from:to
  std::optional<SpanKind> group_by;
};

// Applies the fields to `asked`. What they say about target, contrast, answer or groups replaces
// all that was said before. Without a model the texts of tokens cannot be read: UsageError. Returns
// the names that are no fields of a question.
std::vector<std::string> apply_fields(const Fields& fields, Asked& asked,
                                      const Model* model = nullptr);
bool is_question_field(const std::string& name);
std::vector<std::string> question_fields();  // their names, in the order of the documentation
// The fields that would say the same; a JSON object.
std::string to_fields(const Asked& asked);

// Once the prompt is known: that position, root, component and branch are there (InputError), and
// that everything goes together (UsageError). Settles how many paths are listed.
void check_asked(Asked& asked, const Model& model, int length);

}  // namespace unpack
