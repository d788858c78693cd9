#include <fmt/format.h>

#include <algorithm>

#include "engine/check_question.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/question.h"

namespace unpack {
namespace {

using Json = OrderedJson;
constexpr std::size_t kLargestGroup = 1000;      // ids of a target or a contrast
constexpr std::size_t kMostGroups = 10'000;      // named spans of a prompt
constexpr std::size_t kLongestAnswer = 100'000;  // tokens

struct Reading {
  const std::string& name;
  const Field& field;
  Asked& asked;
  const Model* model;  // none: tokens are given as ids

  Question& question() const { return asked.question; }
  int vocabulary() const { return model ? model->config().vocab_size : 0; }
};

// A text of one token, an id, or a list of these.
std::vector<TokenId> token_set(const Reading& r) {
  const auto* list = std::get_if<FieldList>(&r.field.value);
  const FieldList members = list ? *list : FieldList{r.field};
  if (members.empty()) wrong_value(r.name, "at least one token", r.field);
  if (members.size() > kLargestGroup)
    throw UsageError(
        fmt::format("{} takes {} tokens at most, not {}", r.name, kLargestGroup, members.size()));
  std::vector<TokenId> out;
  for (const Field& member : members) {
    const auto* text = std::get_if<std::string>(&member.value);
    if (text && !r.model) wrong_value(r.name, "ids where there is no model", r.field);
    if (text) {
      try {
        out.push_back(r.model->single_token(*text));
      } catch (const InputError& error) {
        throw InputError(fmt::format("{}: {}", r.name, error.what()));
      }
    } else {
      if (!std::holds_alternative<std::int64_t>(member.value) &&
          !std::holds_alternative<double>(member.value))
        read_text(r.name, member);  // says that it takes a text
      out.push_back(read_ids(r.name, {FieldList{member}}, r.vocabulary(), 1)[0]);
    }
  }
  return out;
}

std::vector<TokenId> id_set(const Reading& r) {
  return read_ids(r.name, r.field, r.vocabulary(), kLargestGroup);
}

AnswerGiven answer_given(const Reading& r) {
  if (const auto* text = std::get_if<std::string>(&r.field.value)) return *text;
  if (!std::holds_alternative<FieldList>(r.field.value)) read_text(r.name, r.field);
  return read_ids(r.name, r.field, r.vocabulary(), kLongestAnswer);
}

// A list of NAME=from:to, or one; in a table they are parted by semicolons.
std::vector<std::string> group_list(const Reading& r) {
  const auto* text = std::get_if<std::string>(&r.field.value);
  std::vector<std::string> out;
  if (!text) {
    out = read_texts(r.name, r.field, kMostGroups);
  } else {
    for (std::size_t begin = 0; begin <= text->size();) {
      const std::size_t end =
          r.field.plain_text ? std::min(text->find(';', begin), text->size()) : text->size();
      out.push_back(text->substr(begin, end - begin));
      begin = end + 1;
    }
  }
  if (out.size() > kMostGroups)
    wrong_value(r.name, fmt::format("at most {} spans", kMostGroups), r.field);
  for (const std::string& group : out) check_span(group);
  return out;
}

template <class T>
T choice(const Reading& r, const std::vector<std::pair<std::string, T>>& words) {
  std::vector<std::string> names;
  for (const auto& word : words) names.push_back(word.first);
  return words[read_choice(r.name, r.field, names)].second;
}

template <std::size_t N>
void numbers(const Reading& r, std::array<double, N>& out) {
  const std::vector<double> values = read_numbers(r.name, r.field, N);
  std::copy(values.begin(), values.end(), out.begin());
}

using Read = void (*)(const Reading& r);

// In the order of the documentation. A new field of a question is a line here and one in to_fields.
const std::vector<std::pair<std::string, Read>>& table() {
  static const std::vector<std::pair<std::string, Read>> fields = {
      {"target", [](const Reading& r) { r.question().target.ids = token_set(r); }},
      {"target_id", [](const Reading& r) { r.question().target.ids = id_set(r); }},
      {"versus", [](const Reading& r) { r.question().target.versus = token_set(r); }},
      {"versus_id", [](const Reading& r) { r.question().target.versus = id_set(r); }},
      {"raw_logit", [](const Reading& r) { r.question().target.raw = read_flag(r.name, r.field); }},
      {"position",
       [](const Reading& r) { r.question().target.position = read_integer(r.name, r.field); }},
      {"root", [](const Reading& r) { r.question().root = read_text(r.name, r.field); }},
      {"reroot",
       [](const Reading& r) {
         r.question().options.reroot =
             choice<Reroot>(r, {{"output", Reroot::output}, {"target", Reroot::target}});
       }},
      {"top_paths",
       [](const Reading& r) { r.asked.top_paths = read_integer(r.name, r.field, 0, kMostPaths); }},
      {"tau",
       [](const Reading& r) {
         const double tau = read_number(r.name, r.field);
         if (!(tau > 0)) wrong_value(r.name, "a number above 0", r.field);
         r.question().paths.tau = tau;
       }},
      {"tau_rule",
       [](const Reading& r) {
         r.question().paths.rule =
             choice<TauRule>(r, {{"named", TauRule::named}, {"entry", TauRule::entry}});
       }},
      {"branch",
       [](const Reading& r) {
         r.question().paths.branch = choice<Branch>(r, {{"K", Branch::K},
                                                        {"Q", Branch::Q},
                                                        {"V", Branch::V},
                                                        {"G", Branch::G},
                                                        {"U", Branch::U},
                                                        {"R", Branch::R}});
       }},
      {"through",
       [](const Reading& r) { r.question().paths.through = read_text(r.name, r.field); }},
      {"from", [](const Reading& r) { r.question().paths.from = read_integer(r.name, r.field); }},
      {"min_layer",
       [](const Reading& r) {
         r.question().paths.min_layer =
             read_integer(r.name, r.field, 0, std::numeric_limits<int>::max());
       }},
      {"sign",
       [](const Reading& r) {
         r.question().paths.sign = choice<int>(r, {{"positive", 1}, {"negative", -1}});
       }},
      {"preset",
       [](const Reading& r) { r.question().options = preset_options(read_text(r.name, r.field)); }},
      {"direction",
       [](const Reading& r) {
         r.question().options.direction =
             choice<Direction>(r, {{"output", Direction::output}, {"read", Direction::read}});
       }},
      {"floor",
       [](const Reading& r) { r.question().options.floor = read_number(r.name, r.field); }},
      {"keys",
       [](const Reading& r) {
         r.question().options.keys =
             choice<Keys>(r, {{"source", Keys::source}, {"spread", Keys::spread}});
       }},
      {"beta", [](const Reading& r) { r.question().options.beta = read_number(r.name, r.field); }},
      {"weights", [](const Reading& r) { numbers(r, r.question().options.weights); }},
      {"mlp_weights", [](const Reading& r) { numbers(r, r.question().options.mlp_weights); }},
      {"expert_weights", [](const Reading& r) { numbers(r, r.question().options.expert_weights); }},
      {"dispatch",
       [](const Reading& r) {
         r.question().options.dispatch =
             choice<Dispatch>(r, {{"aligned", Dispatch::aligned}, {"gate", Dispatch::gate}});
       }},
      {"mlp",
       [](const Reading& r) {
         r.question().options.mlp = choice<MlpRule>(r, {{"per-neuron", MlpRule::per_neuron},
                                                        {"linearized", MlpRule::linearized},
                                                        {"l2", MlpRule::l2}});
       }},
      {"scores",
       [](const Reading& r) {
         r.question().options.scores =
             choice<Scores>(r, {{"raw", Scores::raw}, {"centered", Scores::centered}});
       }},
      {"method",
       [](const Reading& r) {
         r.asked.method = choice<Method>(r, {{"unpack", Method::unpack},
                                             {"ifr", Method::ifr},
                                             {"attnlrp", Method::attnlrp},
                                             {"cplrp", Method::cplrp}});
       }},
      {"no_bos", [](const Reading& r) { r.asked.no_bos = read_flag(r.name, r.field); }},
      {"chat", [](const Reading& r) { r.asked.chat.on = read_flag(r.name, r.field); }},
      {"system", [](const Reading& r) { r.asked.chat.system = read_text(r.name, r.field); }},
      {"chat_template",
       [](const Reading& r) { r.asked.chat.chat_template = read_text(r.name, r.field); }},
      {"answer", [](const Reading& r) { r.asked.answer = answer_given(r); }},
      {"versus_answer", [](const Reading& r) { r.asked.versus_answer = answer_given(r); }},
      {"group", [](const Reading& r) { r.asked.groups = group_list(r); }},
      {"group_by",
       [](const Reading& r) {
         r.asked.group_by = choice<SpanKind>(r, {{"sentence", SpanKind::sentence},
                                                 {"line", SpanKind::line},
                                                 {"paragraph", SpanKind::paragraph},
                                                 {"turn", SpanKind::turn}});
       }},
      // Other spellings of the above, not listed.
      {"target_ids", [](const Reading& r) { r.question().target.ids = id_set(r); }},
      {"versus_ids", [](const Reading& r) { r.question().target.versus = id_set(r); }},
  };
  return fields;
}
constexpr std::size_t kSpellings = 2;

void at_most_one_of(const Fields& fields, std::initializer_list<const char*> names) {
  const char* first = nullptr;
  for (const char* name : names) {
    if (!find_field(fields, name)) continue;
    if (first) throw UsageError(fmt::format("give {} or {}, not both", first, name));
    first = name;
  }
}

bool names_any(const Fields& fields, std::initializer_list<std::string_view> names) {
  return std::any_of(fields.begin(), fields.end(), [&](const auto& field) {
    return std::find(names.begin(), names.end(), field.first) != names.end();
  });
}

}  // namespace

bool is_question_field(const std::string& name) {
  return std::any_of(table().begin(), table().end(),
                     [&](const auto& entry) { return entry.first == name; });
}

std::vector<std::string> question_fields() {
  std::vector<std::string> names;
  for (const auto& entry : table()) names.push_back(entry.first);
  names.resize(names.size() - kSpellings);
  return names;
}

std::vector<std::string> apply_fields(const Fields& fields, Asked& asked, const Model* model) {
  Target& target = asked.question.target;
  at_most_one_of(fields, {"target", "target_id", "target_ids", "answer"});
  at_most_one_of(fields, {"versus", "versus_id", "versus_ids", "versus_answer"});
  at_most_one_of(fields, {"group", "group_by"});
  if (names_any(fields, {"target", "target_id", "target_ids", "answer"})) {
    target.ids.clear();
    asked.answer.reset();
  }
  if (names_any(fields, {"versus", "versus_id", "versus_ids", "versus_answer", "raw_logit"})) {
    target.versus.reset();
    target.raw = false;
    asked.versus_answer.reset();
  }
  if (names_any(fields, {"group", "group_by"})) {
    asked.groups.clear();
    asked.group_by.reset();
  }
  std::vector<std::string> unknown;
  // A preset comes first, so that what stands beside it overrides it in any order.
  if (const Field* preset = find_field(fields, "preset"); preset && !preset->missing())
    asked.question.options = preset_options(read_text("preset", *preset));
  for (const auto& [name, field] : fields) {
    if (name == "preset") continue;
    const auto entry =
        std::find_if(table().begin(), table().end(),
                     [&, wanted = &name](const auto& known) { return known.first == *wanted; });
    if (entry == table().end()) {
      unknown.push_back(name);
    } else if (!field.missing()) {
      entry->second({name, field, asked, model});
    }
  }
  if (target.raw && target.versus) throw UsageError("give versus or raw_logit, not both");
  asked.question.options.check();
  return unknown;
}

std::string to_fields(const Asked& asked) {
  const Question& q = asked.question;
  Json out = {{"no_bos", asked.no_bos}, {"method", to_string(asked.method)}};
  if (!q.target.ids.empty()) out["target_id"] = q.target.ids;
  if (q.target.versus) out["versus_id"] = *q.target.versus;
  out["raw_logit"] = q.target.raw;
  out["position"] = q.target.position;
  if (q.root) out["root"] = *q.root;
  out["reroot"] = to_string(q.options.reroot);
  out["beta"] = q.options.beta;
  out["weights"] = q.options.weights;
  out["mlp_weights"] = q.options.mlp_weights;
  out["expert_weights"] = q.options.expert_weights;
  out["dispatch"] = to_string(q.options.dispatch);
  out["mlp"] = to_string(q.options.mlp);
  out["scores"] = to_string(q.options.scores);
  out["direction"] = to_string(q.options.direction);
  out["floor"] = q.options.floor;
  out["keys"] = to_string(q.options.keys);
  if (asked.top_paths) out["top_paths"] = *asked.top_paths;
  if (q.paths.tau) out["tau"] = *q.paths.tau;
  out["tau_rule"] = to_string(q.paths.rule);
  if (q.paths.branch) out["branch"] = to_string(*q.paths.branch);
  if (q.paths.through) out["through"] = *q.paths.through;
  if (q.paths.from) out["from"] = *q.paths.from;
  if (q.paths.min_layer) out["min_layer"] = *q.paths.min_layer;
  if (q.paths.sign) out["sign"] = *q.paths.sign > 0 ? "positive" : "negative";
  if (asked.chat.on) out["chat"] = true;
  if (asked.chat.system) out["system"] = *asked.chat.system;
  if (asked.chat.chat_template) out["chat_template"] = *asked.chat.chat_template;
  const auto given = [](const AnswerGiven& answer) {
    return std::visit([](const auto& value) { return Json(value); }, answer);
  };
  if (asked.answer) out["answer"] = given(*asked.answer);
  if (asked.versus_answer) out["versus_answer"] = given(*asked.versus_answer);
  if (!asked.groups.empty()) out["group"] = asked.groups;
  if (asked.group_by) out["group_by"] = to_string(*asked.group_by);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

void check_answer(const Asked& asked) {
  const Question& q = asked.question;
  if (asked.versus_answer && !asked.answer) throw UsageError("versus_answer goes with answer");
  if (!asked.answer) return;
  const PathQuery& paths = q.paths;
  if (!q.target.ids.empty() || q.target.versus || q.target.raw || q.target.position != -1 ||
      q.root || asked.method != Method::unpack || paths.tau || paths.branch || paths.through ||
      paths.from || paths.min_layer || paths.sign)
    throw UsageError(
        "answer explains a span of tokens: target, versus, raw_logit, position, root, method and "
        "what filters paths do not go with it");
}

}  // namespace

void check_asked(Asked& asked, const Model& model, int length) {
  Question& q = asked.question;
  check_answer(asked);
  for (const std::string& group : asked.groups) parse_span(group, length);
  if (q.root && asked.method != Method::unpack)
    throw UsageError("root goes with the method unpack alone: the baselines explain the target");
  // With a threshold alone every path above it is listed.
  q.paths.top = asked.top_paths.value_or(q.paths.tau ? kMostPaths : PathQuery().top);
  engine::check_question(q, model, length);
}

}  // namespace unpack
