#include "batch/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "forward/forward.h"
#include "unpack/error.h"

namespace unpack {

namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kAllPaths = 10'000'000;  // as many as the library lists

[[noreturn]] void wrong(const std::string& field, const std::string& wants, const Json& got) {
  std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  throw InputError(fmt::format("field \"{}\" takes {}, not {}", field, wants, text));
}

// Tables hold every number as text.
template <typename T>
T number(const std::string& field, const Json& value, const char* wants) {
  if constexpr (std::is_integral_v<T>) {
    if (value.is_number_integer()) {
      const auto wide = value.get<std::int64_t>();
      if (wide >= std::numeric_limits<T>::min() && wide <= std::numeric_limits<T>::max())
        return static_cast<T>(wide);
    }
  } else if (value.is_number()) {
    return value.get<T>();
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    T out{};
    const auto end = std::from_chars(text.data(), text.data() + text.size(), out);
    if (!text.empty() && end.ec == std::errc() && end.ptr == text.data() + text.size()) return out;
  }
  wrong(field, wants, value);
}

int integer(const std::string& field, const Json& value) {
  return number<int>(field, value, "a whole number");
}
double real(const std::string& field, const Json& value) {
  const double x = number<double>(field, value, "a number");
  if (!std::isfinite(x)) wrong(field, "a finite number", value);
  return x;
}

bool flag(const std::string& field, const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == "true" || value == "1" || value == 1) return true;
  if (value == "false" || value == "0" || value == 0) return false;
  wrong(field, "true or false", value);
}

std::string text(const std::string& field, const Json& value) {
  if (!value.is_string()) wrong(field, "a text", value);
  return value.get<std::string>();
}

// [3, 17], or "3,17" and "3 17" in a table.
std::vector<Json> listed(const Json& value) {
  if (value.is_array()) return {value.begin(), value.end()};
  if (!value.is_string()) return {value};
  std::vector<Json> out;
  std::string piece;
  for (const char c : value.get_ref<const std::string&>() + " ") {
    if (c != ' ' && c != ',' && c != ';') {
      piece += c;
    } else if (!piece.empty()) {
      out.emplace_back(std::exchange(piece, {}));
    }
  }
  return out;
}

TokenId token_id(const std::string& field, const Json& value, const Model* model) {
  const int id = number<int>(field, value, "token ids");
  if (id < 0 || (model && id >= model->config().vocab_size)) {
    throw InputError(
        fmt::format("field \"{}\": token id {} is outside the vocabulary{}", field, id,
                    model ? fmt::format(" (0 to {})", model->config().vocab_size - 1) : ""));
  }
  return id;
}

std::vector<TokenId> id_list(const std::string& field, const Json& value, const Model* model) {
  std::vector<TokenId> out;
  for (const Json& member : listed(value)) out.push_back(token_id(field, member, model));
  if (out.empty()) wrong(field, "at least one token id", value);
  return out;
}

// A text of one token, an id, or an array of these.
std::vector<TokenId> token_set(const std::string& field, const Json& value, const Model* model) {
  std::vector<TokenId> out;
  for (const Json& member : value.is_array() ? std::vector<Json>(value.begin(), value.end())
                                             : std::vector<Json>{value}) {
    if (member.is_string() && !model) wrong(field, "ids where there is no model", value);
    out.push_back(member.is_string() ? model->single_token(member.get<std::string>())
                                     : token_id(field, member, model));
  }
  if (out.empty()) wrong(field, "at least one token", value);
  return out;
}

template <std::size_t N>
void numbers(const std::string& field, const Json& value, std::array<double, N>& out) {
  const std::vector<Json> members = listed(value);
  if (members.size() != N) wrong(field, fmt::format("{} numbers", N), value);
  for (std::size_t i = 0; i < N; ++i) out[i] = real(field, members[i]);
}

template <typename T>
T choice(const std::string& field, const Json& value,
         const std::vector<std::pair<std::string, T>>& words) {
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (value == word) return meaning;
    known += (known.empty() ? "" : ", ") + word;
  }
  wrong(field, "one of " + known, value);
}

struct Reading {
  const Model* model;  // none: tokens are given as ids
  BatchRequest& request;
  const std::string& field;
  const Json& value;
  Question& question() const { return request.asked.question; }
};
using Read = void (*)(const Reading& r);

void nothing(const Reading&) {}  // read elsewhere

const std::vector<std::pair<std::string, Read>>& table() {
  static const std::vector<std::pair<std::string, Read>> fields = {
      {"id", nothing},
      {"prompt", nothing},
      {"ids", nothing},
      {"no_bos", [](const Reading& r) { r.request.asked.no_bos = flag(r.field, r.value); }},
      {"target",
       [](const Reading& r) { r.question().target.ids = token_set(r.field, r.value, r.model); }},
      {"target_id",
       [](const Reading& r) { r.question().target.ids = id_list(r.field, r.value, r.model); }},
      {"versus",
       [](const Reading& r) { r.question().target.versus = token_set(r.field, r.value, r.model); }},
      {"versus_id",
       [](const Reading& r) { r.question().target.versus = id_list(r.field, r.value, r.model); }},
      {"raw_logit", [](const Reading& r) { r.question().target.raw = flag(r.field, r.value); }},
      {"position",
       [](const Reading& r) { r.question().target.position = integer(r.field, r.value); }},
      {"root", [](const Reading& r) { r.question().root = text(r.field, r.value); }},
      {"reroot",
       [](const Reading& r) {
         r.question().options.reroot = choice<Reroot>(
             r.field, r.value, {{"output", Reroot::output}, {"target", Reroot::target}});
       }},
      {"method",
       [](const Reading& r) {
         r.request.asked.method = choice<Method>(r.field, r.value,
                                                 {{"unpack", Method::unpack},
                                                  {"ifr", Method::ifr},
                                                  {"attnlrp", Method::attnlrp},
                                                  {"cplrp", Method::cplrp}});
       }},
      {"preset",
       [](const Reading& r) { r.question().options = preset_options(text(r.field, r.value)); }},
      {"direction",
       [](const Reading& r) {
         r.question().options.direction = choice<Direction>(
             r.field, r.value, {{"output", Direction::output}, {"read", Direction::read}});
       }},
      {"floor", [](const Reading& r) { r.question().options.floor = real(r.field, r.value); }},
      {"keys",
       [](const Reading& r) {
         r.question().options.keys =
             choice<Keys>(r.field, r.value, {{"source", Keys::source}, {"spread", Keys::spread}});
       }},
      {"beta", [](const Reading& r) { r.question().options.beta = real(r.field, r.value); }},
      {"weights",
       [](const Reading& r) { numbers(r.field, r.value, r.question().options.weights); }},
      {"mlp_weights",
       [](const Reading& r) { numbers(r.field, r.value, r.question().options.mlp_weights); }},
      {"expert_weights",
       [](const Reading& r) { numbers(r.field, r.value, r.question().options.expert_weights); }},
      {"dispatch",
       [](const Reading& r) {
         r.question().options.dispatch = choice<Dispatch>(
             r.field, r.value, {{"aligned", Dispatch::aligned}, {"gate", Dispatch::gate}});
       }},
      {"mlp",
       [](const Reading& r) {
         r.question().options.mlp = choice<MlpRule>(r.field, r.value,
                                                    {{"per-neuron", MlpRule::per_neuron},
                                                     {"linearized", MlpRule::linearized},
                                                     {"l2", MlpRule::l2}});
       }},
      {"scores",
       [](const Reading& r) {
         r.question().options.scores = choice<Scores>(
             r.field, r.value, {{"raw", Scores::raw}, {"centered", Scores::centered}});
       }},
      {"top_paths",
       [](const Reading& r) {
         const int top = integer(r.field, r.value);
         if (top < 0) wrong(r.field, "0 or more", r.value);
         r.request.asked.top_paths = static_cast<std::size_t>(top);
       }},
      {"tau",
       [](const Reading& r) {
         const double tau = real(r.field, r.value);
         if (tau <= 0) wrong(r.field, "a number above 0", r.value);
         r.question().paths.tau = tau;
       }},
      {"tau_rule",
       [](const Reading& r) {
         r.question().paths.rule = choice<TauRule>(
             r.field, r.value, {{"named", TauRule::named}, {"entry", TauRule::entry}});
       }},
      {"branch",
       [](const Reading& r) {
         r.question().paths.branch = choice<Branch>(r.field, r.value,
                                                    {{"K", Branch::K},
                                                     {"Q", Branch::Q},
                                                     {"V", Branch::V},
                                                     {"G", Branch::G},
                                                     {"U", Branch::U},
                                                     {"R", Branch::R}});
       }},
      {"through", [](const Reading& r) { r.question().paths.through = text(r.field, r.value); }},
      {"from", [](const Reading& r) { r.question().paths.from = integer(r.field, r.value); }},
      {"min_layer",
       [](const Reading& r) { r.question().paths.min_layer = integer(r.field, r.value); }},
      {"sign",
       [](const Reading& r) {
         r.question().paths.sign =
             choice<int>(r.field, r.value, {{"positive", 1}, {"negative", -1}});
       }},
  };
  return fields;
}

Json parse_fields(const std::string& fields) {
  Json object;
  try {
    object = Json::parse(fields);
  } catch (const Json::parse_error& error) {
    throw InputError(fmt::format(
        "not JSON (byte {}): give one object a line, such as {{\"prompt\": \"Mary and John\"}}",
        error.byte));
  }
  if (!object.is_object())
    throw InputError("not a JSON object: give one a line, such as {\"prompt\": \"Mary and John\"}");
  return object;
}

// What a line says about target or contrast replaces all that the run said about it.
void make_room(const Json& fields, Target& target) {
  if (fields.contains("target") || fields.contains("target_id")) target.ids.clear();
  if (fields.contains("versus") || fields.contains("versus_id") || fields.contains("raw_logit")) {
    target.versus.reset();
    target.raw = false;
  }
}

void apply(const Model* model, const Json& fields, BatchRequest& request) {
  make_room(fields, request.asked.question.target);
  // A preset comes first, so that what stands beside it overrides it in any order.
  if (const auto preset = fields.find("preset"); preset != fields.end() && !preset->is_null())
    request.asked.question.options = preset_options(text("preset", *preset));
  for (const auto& [name, value] : fields.items()) {
    if (name == "preset") continue;
    const auto entry =
        std::find_if(table().begin(), table().end(),
                     [&, wanted = &name](const auto& known) { return known.first == *wanted; });
    if (entry == table().end()) {
      request.unknown.push_back(name);
    } else if (!value.is_null()) {
      entry->second({model, request, name, value});
    }
  }
  const auto given = [&](const char* name) {
    return fields.contains(name) && !fields[name].is_null();
  };
  if (given("target") && given("target_id"))
    throw InputError("give \"target\" or \"target_id\", not both");
  if (given("versus") && given("versus_id"))
    throw InputError("give \"versus\" or \"versus_id\", not both");
  if (request.asked.question.target.raw && request.asked.question.target.versus)
    throw InputError("give a contrast or \"raw_logit\", not both");
}

}  // namespace

bool known_field(const std::string& name) {
  return std::any_of(table().begin(), table().end(),
                     [&](const auto& entry) { return entry.first == name; });
}

std::string to_fields(const BatchQuestion& asked) {
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
  return out.dump();
}

BatchQuestion from_fields(const std::string& fields, const Model* model) {
  BatchRequest request;
  request.asked.question.options = default_options();
  apply(model, parse_fields(fields), request);
  for (const char* own : {"id", "prompt", "ids"}) {
    if (parse_fields(fields).contains(own))
      throw InputError(fmt::format("\"{}\" belongs to a prompt, not to the run", own));
  }
  if (!request.unknown.empty())
    throw InputError(fmt::format("'{}' is no field of a prompt", request.unknown[0]));
  return request.asked;
}

BatchRequest read_request(const Model& model, const BatchQuestion& defaults,
                          const std::string& fields) {
  const Json object = parse_fields(fields);
  BatchRequest request;
  request.asked = defaults;
  if (const auto id = object.find("id"); id != object.end()) {
    if (id->is_structured()) wrong("id", "a text or a number", *id);
    request.id = *id;
  }
  apply(&model, object, request);
  BatchQuestion& asked = request.asked;
  Question& q = asked.question;
  const auto given = [&](const char* name) {
    return object.contains(name) && !object[name].is_null();
  };
  if (given("prompt") == given("ids"))
    throw InputError(given("ids") ? "give \"prompt\" or \"ids\", not both"
                                  : "neither \"prompt\" nor \"ids\" is given");
  request.ids = given("ids") ? id_list("ids", object["ids"], &model)
                             : model.encode_prompt(text("prompt", object["prompt"]), asked.no_bos);
  check_prompt(model.config(), request.ids);
  const int length = static_cast<int>(request.ids.size());
  resolve_position(q.target.position, length);
  q.options.check();
  if (q.root) parse_node(model.writers(), *q.root, length);
  if (q.root && asked.method != Method::unpack)
    throw InputError(
        "\"root\" goes with the method unpack alone: the baselines explain the target");
  if (q.paths.through) model.writers().parse(*q.paths.through);
  if (q.paths.from) resolve_position(*q.paths.from, length);
  q.paths.top = asked.top_paths.value_or(q.paths.tau ? kAllPaths : PathQuery().top);
  return request;
}

}  // namespace unpack
