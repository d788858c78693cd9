#include <fmt/format.h>

#include <algorithm>

#include "engine/check_question.h"
#include "unpack/choice.h"
#include "unpack/error.h"
#include "unpack/field_json.h"
#include "unpack/question.h"

namespace unpack {
namespace {

constexpr std::size_t kLargestGroup = 1000;      // ids of a target or a contrast
constexpr std::size_t kMostGroups = 10'000;      // named spans of a prompt
constexpr std::size_t kLongestAnswer = 100'000;  // tokens

struct Reading {
  const std::string& name;
  const Field& field;
  Asked& asked;
  const Model* model;       // none: tokens are given as ids
  bool texts_pass = false;  // or as texts that a model will read later

  Question& question() const { return asked.question; }
  Options& options() const { return asked.question.options; }
  PathQuery& paths() const { return asked.question.paths; }
  int vocabulary() const { return model ? model->config().vocab_size : 0; }
};

// What is wrong with a value is said under the name of its field.
template <class Look>
auto named(const std::string& name, const Look& look) {
  try {
    return look();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", name, error.what()));
  }
}

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
    if (text && r.texts_pass) {
      out.push_back(0);
    } else if (text && !r.model) {
      wrong_value(r.name, "ids where there is no model", r.field);
    } else if (text) {
      out.push_back(named(r.name, [&] { return r.model->single_token(*text); }));
    } else {
      if (!std::holds_alternative<std::int64_t>(member.value) &&
          !std::holds_alternative<double>(member.value))
        read_text(r.name, member);  // says that it takes a text
      out.push_back(read_id(list ? fmt::format("{}[{}]", r.name, out.size()) : r.name, member,
                            r.vocabulary()));
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

// A component, which a model knows or not.
std::string component(const Reading& r) {
  std::string text = read_text(r.name, r.field);
  if (r.model) named(r.name, [&] { return r.model->writers().parse(text); });
  return text;
}

template <class T>
T choice(const Reading& r, std::initializer_list<T> values) {
  return read_word(r.name, r.field, words_of(values));
}

template <std::size_t N>
void numbers(const Reading& r, std::array<double, N>& out) {
  const std::vector<double> values = read_numbers(r.name, r.field, N);
  std::copy(values.begin(), values.end(), out.begin());
}

// A value as a field, missing where there is none.
template <class T>
Field field_of(const T& value) {
  Field field;
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, double>) {
    field.value = value;
  } else if constexpr (std::is_integral_v<T>) {
    field.value = static_cast<std::int64_t>(value);
  } else if constexpr (std::is_convertible_v<T, std::string>) {
    field.value = std::string(value);
  } else {
    FieldList list;
    for (const auto& member : value) list.push_back(field_of(member));
    field.value = std::move(list);
  }
  return field;
}
template <class T>
Field field_of(const std::optional<T>& value) {
  return value ? field_of(*value) : Field();
}
template <class T>
Field word_of(const std::optional<T>& value) {
  return value ? field_of(to_string(*value)) : Field();
}
Field field_of(const std::optional<AnswerGiven>& answer) {
  return answer ? std::visit([](const auto& value) { return field_of(value); }, *answer) : Field();
}
template <class T>
Field if_any(const std::vector<T>& values) {
  return values.empty() ? Field() : field_of(values);
}

struct Row {
  const char* name;
  void (*read)(const Reading& r);
  Field (*write)(const Asked& asked) = nullptr;  // none: another row says the same
  bool option = false;                           // one of Options
};

// The one list of fields, in the order in which they are written down; a new field of a question is
// a row here.
const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"no_bos", [](const Reading& r) { r.asked.no_bos = read_flag(r.name, r.field); },
       [](const Asked& a) { return field_of(a.no_bos); }},
      {"method",
       [](const Reading& r) {
         r.asked.method = read_word(r.name, r.field, words_of(kCreditMethods));
       },
       [](const Asked& a) { return field_of(to_string(a.method)); }},
      {"target", [](const Reading& r) { r.question().target.ids = token_set(r); }},
      {"target_id", [](const Reading& r) { r.question().target.ids = id_set(r); },
       [](const Asked& a) { return if_any(a.question.target.ids); }},
      {"versus", [](const Reading& r) { r.question().target.versus = token_set(r); }},
      {"versus_id", [](const Reading& r) { r.question().target.versus = id_set(r); },
       [](const Asked& a) { return field_of(a.question.target.versus); }},
      {"raw_logit", [](const Reading& r) { r.question().target.raw = read_flag(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.target.raw); }},
      {"position",
       [](const Reading& r) { r.question().target.position = read_integer(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.target.position); }},
      {"root", [](const Reading& r) { r.question().root = read_text(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.root); }},
      {"preset",
       [](const Reading& r) { r.options() = preset_options(read_text(r.name, r.field)); }},
      {"beta", [](const Reading& r) { r.options().beta = read_number(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.options.beta); }, true},
      {"weights", [](const Reading& r) { numbers(r, r.options().weights); },
       [](const Asked& a) { return field_of(a.question.options.weights); }, true},
      {"mlp_weights", [](const Reading& r) { numbers(r, r.options().mlp_weights); },
       [](const Asked& a) { return field_of(a.question.options.mlp_weights); }, true},
      {"expert_weights", [](const Reading& r) { numbers(r, r.options().expert_weights); },
       [](const Asked& a) { return field_of(a.question.options.expert_weights); }, true},
      {"dispatch",
       [](const Reading& r) {
         r.options().dispatch = choice(r, {Dispatch::aligned, Dispatch::gate});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.dispatch)); }, true},
      {"mlp",
       [](const Reading& r) {
         r.options().mlp = choice(r, {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.mlp)); }, true},
      {"scores",
       [](const Reading& r) {
         r.options().scores = choice(r, {Scores::raw, Scores::centered});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.scores)); }, true},
      {"reroot",
       [](const Reading& r) {
         r.options().reroot = choice(r, {Reroot::output, Reroot::target});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.reroot)); }, true},
      {"direction",
       [](const Reading& r) {
         r.options().direction = choice(r, {Direction::output, Direction::read});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.direction)); }, true},
      {"floor", [](const Reading& r) { r.options().floor = read_number(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.options.floor); }, true},
      {"keys",
       [](const Reading& r) {
         r.options().keys = choice(r, {Keys::source, Keys::spread});
       },
       [](const Asked& a) { return field_of(to_string(a.question.options.keys)); }, true},
      {"top_paths",
       [](const Reading& r) { r.asked.top_paths = read_integer(r.name, r.field, 0, kMostPaths); },
       [](const Asked& a) { return field_of(a.top_paths); }},
      {"tau",
       [](const Reading& r) {
         const double tau = read_number(r.name, r.field);
         if (!(tau > 0)) wrong_value(r.name, "a number above 0", r.field);
         r.paths().tau = tau;
       },
       [](const Asked& a) { return field_of(a.question.paths.tau); }},
      {"tau_rule",
       [](const Reading& r) {
         r.paths().rule = choice(r, {TauRule::named, TauRule::entry});
       },
       [](const Asked& a) { return field_of(to_string(a.question.paths.rule)); }},
      {"branch",
       [](const Reading& r) {
         r.paths().branch =
             choice(r, {Branch::K, Branch::Q, Branch::V, Branch::G, Branch::U, Branch::R});
       },
       [](const Asked& a) { return word_of(a.question.paths.branch); }},
      {"through", [](const Reading& r) { r.paths().through = component(r); },
       [](const Asked& a) { return field_of(a.question.paths.through); }},
      {"from", [](const Reading& r) { r.paths().from = read_integer(r.name, r.field); },
       [](const Asked& a) { return field_of(a.question.paths.from); }},
      {"min_layer",
       [](const Reading& r) {
         r.paths().min_layer = read_integer(r.name, r.field, 0, std::numeric_limits<int>::max());
       },
       [](const Asked& a) { return field_of(a.question.paths.min_layer); }},
      {"sign",
       [](const Reading& r) {
         r.paths().sign = read_word<int>(r.name, r.field, {{"positive", 1}, {"negative", -1}});
       },
       [](const Asked& a) {
         const std::optional<int> sign = a.question.paths.sign;
         return sign ? field_of(*sign > 0 ? "positive" : "negative") : Field();
       }},
      {"chat", [](const Reading& r) { r.asked.chat.on = read_flag(r.name, r.field); },
       [](const Asked& a) { return a.chat.on ? field_of(true) : Field(); }},
      {"system", [](const Reading& r) { r.asked.chat.system = read_text(r.name, r.field); },
       [](const Asked& a) { return field_of(a.chat.system); }},
      {"chat_template",
       [](const Reading& r) { r.asked.chat.chat_template = read_text(r.name, r.field); },
       [](const Asked& a) { return field_of(a.chat.chat_template); }},
      {"answer", [](const Reading& r) { r.asked.answer = answer_given(r); },
       [](const Asked& a) { return field_of(a.answer); }},
      {"versus_answer", [](const Reading& r) { r.asked.versus_answer = answer_given(r); },
       [](const Asked& a) { return field_of(a.versus_answer); }},
      {"group", [](const Reading& r) { r.asked.groups = group_list(r); },
       [](const Asked& a) { return if_any(a.groups); }},
      {"group_by",
       [](const Reading& r) {
         r.asked.group_by =
             choice(r, {SpanKind::sentence, SpanKind::line, SpanKind::paragraph, SpanKind::turn});
       },
       [](const Asked& a) { return word_of(a.group_by); }},
      // Other spellings of the above, not listed.
      {"target_ids", [](const Reading& r) { r.question().target.ids = id_set(r); }},
      {"versus_ids", [](const Reading& r) { r.question().target.versus = id_set(r); }},
  };
  return rows;
}
constexpr std::size_t kSpellings = 2;

const Row* find_row(const std::string& name) {
  const auto found = std::find_if(table().begin(), table().end(),
                                  [&](const Row& row) { return row.name == name; });
  return found == table().end() ? nullptr : &*found;
}

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

// Returns the names that are no fields.
std::vector<std::string> apply(const Fields& fields, Asked& asked, const Model* model,
                               bool texts_pass) {
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
  if (const Field* preset = find_field(fields, "preset"))
    asked.question.options = preset_options(read_text("preset", *preset));
  for (const auto& [name, field] : fields) {
    if (name == "preset") continue;
    const Row* row = find_row(name);
    if (row == nullptr) {
      unknown.push_back(name);
    } else if (!field.missing()) {
      row->read({name, field, asked, model, texts_pass});
    }
  }
  if (target.raw && target.versus) throw UsageError("give versus or raw_logit, not both");
  asked.question.options.check();
  return unknown;
}

Fields written(const Asked& asked, bool options_alone) {
  Fields fields;
  for (const Row& row : table()) {
    if (row.write == nullptr || (options_alone && !row.option)) continue;
    if (Field field = row.write(asked); !field.missing())
      fields.emplace_back(row.name, std::move(field));
  }
  return fields;
}

// That everything goes together.
void check_together(const Asked& asked) {
  const Question& q = asked.question;
  if (q.root && asked.method != Method::unpack)
    throw UsageError("root goes with the method unpack alone: the baselines explain the target");
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

bool is_question_field(const std::string& name) { return find_row(name) != nullptr; }

std::vector<std::string> question_fields() {
  std::vector<std::string> names;
  for (const Row& row : table()) names.emplace_back(row.name);
  names.resize(names.size() - kSpellings);
  return names;
}

std::vector<std::string> option_fields() {
  std::vector<std::string> names;
  for (const Row& row : table()) {
    if (row.option) names.emplace_back(row.name);
  }
  return names;
}

std::vector<std::string> apply_fields(const Fields& fields, Asked& asked, const Model* model) {
  return apply(fields, asked, model, false);
}

Options read_options(const Fields& fields, const Options& begin) {
  Asked asked;
  asked.question.options = begin;
  Fields own;
  for (const auto& field : fields) {
    const Row* row = find_row(field.first);
    if (row != nullptr && (row->option || field.first == "preset")) own.push_back(field);
  }
  apply(own, asked, nullptr, false);
  return asked.question.options;
}

void check_fields(const Fields& fields, bool chat) {
  Asked asked;
  apply(fields, asked, nullptr, true);
  check_together(asked);
  if (asked.group_by) check_span_kind(*asked.group_by, chat);
}

Fields to_fields(const Asked& asked) { return written(asked, false); }

Fields to_fields(const Options& options) {
  Asked asked;
  asked.question.options = options;
  return written(asked, true);
}

std::string to_json(const Asked& asked) {
  return fields_json(to_fields(asked)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void check_asked(Asked& asked, const Model& model, int length) {
  Question& q = asked.question;
  check_together(asked);
  for (const std::string& group : asked.groups)
    named("group", [&] { return parse_span(group, length); });
  // With a threshold alone every path above it is listed.
  q.paths.top = asked.top_paths.value_or(q.paths.tau ? kMostPaths : PathQuery().top);
  engine::check_question(q, model, length);
}

}  // namespace unpack
