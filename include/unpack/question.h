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
// Their names. The list of fields is the codec's table, and this; the options are those of Options.
std::vector<std::string> question_fields();
std::vector<std::string> option_fields();
// The options among the fields, applied to `begin`; other fields are not looked at.
Options read_options(const Fields& fields, const Options& begin);
// The fields that would say the same.
Fields to_fields(const Asked& asked);
Fields to_fields(const Options& options);  // the options alone
std::string to_json(const Asked& asked);   // as a JSON object

// What can be known before there is a model: that every field is in its range and that all go
// together (UsageError). Texts of tokens are left for later. `chat`: the prompt is a conversation.
void check_fields(const Fields& fields, bool chat = false);

// Once the prompt is known: that position, root, component and branch are there (InputError), and
// that everything goes together (UsageError). Settles how many paths are listed.
void check_asked(Asked& asked, const Model& model, int length);

}  // namespace unpack
