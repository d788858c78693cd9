#include "batch/request.h"

#include <fmt/format.h>

#include <algorithm>

#include "forward/forward.h"
#include "unpack/error.h"

namespace unpack {
namespace {

using Json = OrderedJson;
constexpr const char* kOwn[] = {"id", "prompt", "ids", "messages"};
constexpr std::size_t kLongestId = 1000;  // bytes
constexpr std::size_t kMostNamed = 20;    // unknown fields that are reported

bool own_field(const std::string& name) {
  return std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn);
}

Fields parse(const std::string& text) {
  Fields fields = read_fields(text, "the line");
  // Tables hold every number as text, and so may a line.
  for (auto& [name, field] : fields)
    field.plain_text = std::holds_alternative<std::string>(field.value);
  return fields;
}

Fields without_own(const Fields& fields) {
  Fields rest;
  for (const auto& field : fields) {
    if (!own_field(field.first)) rest.push_back(field);
  }
  return rest;
}

// A text or a number; everything else is an error.
Json read_id(const Field& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) {
    if (text->size() > kLongestId)
      throw InputError(fmt::format("id has {} bytes, more than {}", text->size(), kLongestId));
    return *text;
  }
  if (const auto* whole = std::get_if<std::int64_t>(&field.value)) return *whole;
  if (const auto* number = std::get_if<double>(&field.value)) return *number;
  if (const auto* flag = std::get_if<bool>(&field.value)) return *flag;
  wrong_value("id", "a text or a number", field);
}

MadePrompt read_line_prompt(const Model& model, const Fields& fields, const Asked& asked) {
  GivenPrompt given;
  given.no_bos = asked.no_bos;
  given.chat = asked.chat;
  if (const Field* prompt = find_field(fields, "prompt")) given.text = read_text("prompt", *prompt);
  if (const Field* messages = find_field(fields, "messages"))
    given.messages = read_json("messages", *messages);
  if (const Field* ids = find_field(fields, "ids"))
    given.ids = read_ids("ids", *ids, model.config().vocab_size, std::numeric_limits<int>::max());
  if (!given.text && !given.ids && !given.messages)
    throw InputError("neither prompt nor ids is given");
  return make_prompt(model, given);
}

}  // namespace

bool batch::known_field(const std::string& name) {
  return own_field(name) || is_question_field(name);
}

Json batch::id_of(const std::string& fields) {
  try {
    const Fields read = parse(fields);
    const Field* id = find_field(read, "id");
    return id ? read_id(*id) : Json(nullptr);
  } catch (const Error&) {
    return nullptr;
  }
}

Asked read_asked(const std::string& text, const Model* model) {
  const Fields fields = parse(text);
  for (const char* own : kOwn) {
    if (find_field(fields, own))
      throw InputError(fmt::format("{} belongs to a prompt, not to the run", own));
  }
  Asked asked;
  const std::vector<std::string> unknown = apply_fields(fields, asked, model);
  if (!unknown.empty()) throw InputError(fmt::format("'{}' is no field of a prompt", unknown[0]));
  return asked;
}

batch::BatchRequest batch::read_request(const Model& model, const Asked& defaults,
                                        const std::string& text) {
  const Fields fields = parse(text);
  batch::BatchRequest request;
  request.asked = defaults;
  if (const Field* id = find_field(fields, "id")) request.id = read_id(*id);
  request.unknown = apply_fields(without_own(fields), request.asked, &model);
  if (request.unknown.size() > kMostNamed) request.unknown.resize(kMostNamed);
  request.prompt = read_line_prompt(model, fields, request.asked);
  const std::vector<TokenId>& ids = request.prompt.ids;
  forward::check_prompt(model.config(), ids);
  check_asked(request.asked, model, ids.size());
  if (request.asked.answer) {
    request.answer = answer_tokens(request.asked, model, request.prompt);
  } else {
    request.spans = spans_of(request.asked, model, request.prompt);
  }
  return request;
}

}  // namespace unpack
