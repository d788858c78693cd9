#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "base/message.h"
#include "unpack/error.h"

namespace unpack::model {

ConfigReader::ConfigReader(const JsonValue& object, std::string origin, std::string path)
    : object_(&object), origin_(std::move(origin)), path_(std::move(path)) {}

void ConfigReader::fail(const std::string& what) const {
  throw InputError(fmt::format("{}: {}", origin_, what));
}

const JsonValue* ConfigReader::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() ? nullptr : &*it;
}

const JsonValue* ConfigReader::find_value(std::string_view key) const {
  const JsonValue* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool ConfigReader::is_null(std::string_view key) const {
  const JsonValue* value = find(key);
  return value != nullptr && value->is_null();
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object())
    fail(fmt::format("{} is {}, expected a JSON object", name(key), value->type_name()));
  return ConfigReader(*value, origin_, name(key) + ".");
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::abs(value->get<double>()) < 1e15 &&
                      std::floor(value->get<double>()) == value->get<double>());
  if (!whole)
    fail(
        fmt::format("{} is {}, expected a whole number", name(key),
                    base::shown(value->dump(-1, ' ', false, JsonValue::error_handler_t::replace))));
  if (value->is_number_unsigned() &&
      value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return INT64_MAX;
  return value->is_number_float() ? static_cast<std::int64_t>(value->get<double>())
                                  : value->get<std::int64_t>();
}

std::optional<int> ConfigReader::optional_size(std::string_view key) const {
  const std::optional<std::int64_t> value = integer(key);
  if (!value) return std::nullopt;
  if (*value < 1 || *value > kMaxSize)
    fail(fmt::format("{} is {}, expected a number from 1 to {}", name(key), *value, kMaxSize));
  return *value;
}

int ConfigReader::layers(std::initializer_list<std::string_view> aliases, int fallback) const {
  constexpr int kMaxLayers = 10'000;
  const int count = size(aliases, fallback);
  if (count > kMaxLayers)
    fail(fmt::format("{} layers are more than the {} that are believable", count, kMaxLayers));
  return count;
}

int ConfigReader::size(std::string_view key, int fallback) const {
  return optional_size(key).value_or(fallback);
}

int ConfigReader::size(std::initializer_list<std::string_view> aliases, int fallback) const {
  for (const std::string_view key : aliases) {
    if (const auto value = optional_size(key)) return *value;
  }
  return fallback;
}

double ConfigReader::positive(std::string_view key, double fallback) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return fallback;
  if (!value->is_number())
    fail(fmt::format("{} is {}, expected a number", name(key), value->type_name()));
  const double number = value->get<double>();
  if (!std::isfinite(number) || number <= 0)
    fail(fmt::format("{} is {}, expected a number above 0", name(key), number));
  return number;
}

std::optional<double> ConfigReader::optional_positive(std::string_view key) const {
  if (find_value(key) == nullptr) return std::nullopt;
  return positive(key, 0);
}

double ConfigReader::number(std::string_view key, double fallback) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    fail(fmt::format("{} is {}, expected a number", name(key), value->type_name()));
  return value->get<double>();
}

std::vector<double> ConfigReader::positives(std::string_view key) const {
  std::vector<double> out;
  const JsonValue* value = find_value(key);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(fmt::format("{} is no list of numbers", name(key)));
  for (const JsonValue& x : *value) {
    if (!x.is_number() || !(x.get<double>() > 0) || !std::isfinite(x.get<double>()))
      fail(fmt::format("{} holds something that is no number above 0", name(key)));
    out.push_back(x.get<double>());
  }
  return out;
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view key) const {
  std::vector<std::int64_t> out;
  const JsonValue* value = find_value(key);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(fmt::format("{} is no list of whole numbers", name(key)));
  for (const JsonValue& x : *value) {
    if (!x.is_number_integer())
      fail(fmt::format("{} holds something that is no whole number", name(key)));
    out.push_back(x.get<std::int64_t>());
  }
  return out;
}

std::optional<std::vector<std::string>> ConfigReader::texts(std::string_view key) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(fmt::format("{} is no list", name(key)));
  std::vector<std::string> out;
  for (const JsonValue& x : *value) {
    if (!x.is_string()) fail(fmt::format("{} holds something that is no string", name(key)));
    out.push_back(x.get<std::string>());
  }
  return out;
}

double ConfigReader::required_positive(std::string_view key) const {
  if (find_value(key) == nullptr)
    fail(fmt::format("{} is missing, expected a number above 0", name(key)));
  return positive(key, 0);
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean())
    fail(fmt::format("{} is {}, expected true or false", name(key), value->type_name()));
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const JsonValue* value = find_value(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string())
    fail(fmt::format("{} is {}, expected a string", name(key), value->type_name()));
  return value->get<std::string>();
}

Activation read_activation(const ConfigReader& reader, std::string_view key,
                           std::string_view fallback) {
  const std::string name = reader.text(key, fallback);
  if (name == "gelu") return Activation::gelu_erf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh")
    return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  reader.fail(
      fmt::format("{} {} is not supported (supported: gelu, gelu_new, gelu_fast, "
                  "gelu_pytorch_tanh, relu, silu, swish)",
                  key, base::shown(name)));
}

namespace {

void read_yarn(const ConfigReader& scaling, const RopeKeys& keys, Rope& rope) {
  rope.scaling = RopeScaling::yarn;
  rope.original_context = scaling.positive("original_max_position_embeddings", keys.context);
  rope.factor = scaling.positive("factor", keys.context / rope.original_context);
  rope.beta_fast = scaling.positive("beta_fast", 32);
  rope.beta_slow = scaling.positive("beta_slow", 1);
  rope.truncate = scaling.flag("truncate", true);
  const auto size = [&](double scale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
  };
  const auto m = scaling.optional_positive("mscale"),
             all = scaling.optional_positive("mscale_all_dim");
  rope.amplitude =
      scaling.positive("attention_factor", m && all ? size(*m) / size(*all) : size(1.0));
}

void read_longrope(const ConfigReader& reader, const ConfigReader& scaling, const RopeKeys& keys,
                   Rope& rope) {
  rope.scaling = RopeScaling::longrope;
  rope.short_factor = scaling.positives("short_factor");
  rope.long_factor = scaling.positives("long_factor");
  const std::size_t half = rope.dims / 2;
  for (const auto& [key, list] : {std::pair{"short_factor", &rope.short_factor},
                                  std::pair{"long_factor", &rope.long_factor}}) {
    if (list->size() != half)
      reader.fail(
          fmt::format("{} has {} numbers, expected {}", scaling.name(key), list->size(), half));
  }
  const double fallback = keys.original > 0 ? keys.original : keys.context;
  rope.original_context =
      reader.positive("original_max_position_embeddings",
                      scaling.positive("original_max_position_embeddings", fallback));
  rope.factor = scaling.positive("factor", keys.context / rope.original_context);
  const double amplitude =
      rope.factor <= 1 ? 1.0
                       : std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_context));
  rope.amplitude = scaling.positive("attention_factor", amplitude);
}

void read_scaling(const ConfigReader& reader, const ConfigReader& scaling, const RopeKeys& keys,
                  Rope& rope) {
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  if (type == "default") return;
  if (type == "longrope" || (keys.old_names && (type == "su" || type == "yarn"))) {
    read_longrope(reader, scaling, keys, rope);
  } else if (type == "yarn") {
    read_yarn(scaling, keys, rope);
  } else if (type == "linear") {
    rope.scaling = RopeScaling::linear;
    rope.factor = scaling.required_positive("factor");
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::llama3;
    rope.factor = scaling.required_positive("factor");
    rope.low_freq_factor = scaling.required_positive("low_freq_factor");
    rope.high_freq_factor = scaling.required_positive("high_freq_factor");
    rope.original_context = scaling.required_positive("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      reader.fail(fmt::format("{} is {}, expected more than low_freq_factor {}",
                              scaling.name("high_freq_factor"), rope.high_freq_factor,
                              rope.low_freq_factor));
    }
  } else {
    reader.fail(fmt::format(
        "rope type {} is not supported (supported: default, linear, llama3, yarn, longrope)",
        base::shown(type)));
  }
}

Rope read_rope_base(const ConfigReader& reader, const ConfigReader* fresh, const RopeKeys& keys) {
  Rope rope;
  rope.base = reader.positive(keys.theta_key, reader.positive("rope_theta", keys.base));
  double share =
      reader.positive(keys.share_key, reader.positive("partial_rotary_factor", keys.share));
  if (fresh != nullptr) {
    rope.base = fresh->positive("rope_theta", rope.base);
    share = fresh->positive("partial_rotary_factor", share);
  }
  if (rope.base <= 1.0)
    reader.fail(fmt::format("rotary base {} is not usable, expected a number above 1", rope.base));
  if (share > 1.0)
    reader.fail(fmt::format(
        "rotary share {} of a head is not usable, expected a number from 0 to 1", share));
  rope.dims = share * keys.d_head;
  if (rope.dims < 2 || rope.dims % 2 != 0) {
    reader.fail(fmt::format(
        "{} of the {} dimensions of a head would be rotated, expected an even number from 2",
        rope.dims, keys.d_head));
  }
  return rope;
}

}  // namespace

Rope read_rope(const ConfigReader& reader, const RopeKeys& keys) {
  // rope_parameters holds what rope_scaling held; a file that has both repeats itself.
  const std::optional<ConfigReader> fresh = reader.object("rope_parameters");
  const std::optional<ConfigReader> old = reader.object("rope_scaling");
  Rope rope = read_rope_base(reader, fresh ? &*fresh : nullptr, keys);
  if (fresh || old) read_scaling(reader, fresh ? *fresh : *old, keys, rope);
  return rope;
}

Rope read_rope_parameters(const ConfigReader& reader, const ConfigReader& parameters,
                          const RopeKeys& keys) {
  Rope rope = read_rope_base(reader, &parameters, keys);
  read_scaling(reader, parameters, keys, rope);
  return rope;
}

std::vector<bool> read_sliding(const ConfigReader& reader, int n_layers,
                               const std::function<bool(int)>& otherwise) {
  std::vector<bool> sliding;
  const auto types = reader.texts("layer_types");
  if (types && types->size() != static_cast<std::size_t>(n_layers)) {
    reader.fail(
        fmt::format("layer_types names {} layers, but the model has {}", types->size(), n_layers));
  }
  for (int l = 0; l < n_layers; ++l) {
    if (!types) {
      sliding.push_back(otherwise(l));
      continue;
    }
    const std::string& name = (*types)[l];
    if (name != "full_attention" && name != "sliding_attention") {
      reader.fail(fmt::format(
          "layer type {} is not supported (supported: full_attention, sliding_attention)",
          base::shown(name)));
    }
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

std::vector<TokenId> read_end(const ConfigReader& reader, int vocab_size, TokenId fallback) {
  std::vector<TokenId> out;
  const auto add = [&](std::int64_t id) {
    if (id >= 0 && id < vocab_size) out.push_back(id);
  };
  const JsonValue* value = reader.find("eos_token_id");
  if (value != nullptr && value->is_array()) {
    for (const std::int64_t id : reader.integers("eos_token_id")) add(id);
  } else if (value == nullptr) {
    add(fallback);
  } else if (const auto id = reader.integer("eos_token_id")) {
    add(*id);
  }
  return out;
}

std::optional<TokenId> read_bos(const ConfigReader& reader, int vocab_size, TokenId fallback) {
  if (reader.is_null("bos_token_id")) return std::nullopt;
  const std::int64_t id = reader.integer("bos_token_id").value_or(fallback);
  if (id < 0 || id >= vocab_size) return std::nullopt;
  return id;
}

DType read_dtype(const ConfigReader& reader) {
  const std::string name = reader.text("torch_dtype", reader.text("dtype", "float32"));
  if (name == "float16") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float64") return DType::f64;
  return DType::f32;  // only a hint; what the file holds counts
}

void check_shape(const ConfigReader& reader, const ModelConfig& config) {
  if (config.n_heads % config.n_kv_heads != 0) {
    reader.fail(fmt::format("{} query heads cannot share {} key/value heads evenly", config.n_heads,
                            config.n_kv_heads));
  }
  if (config.d_head < 1 || std::int64_t{config.n_heads} * config.d_head > ConfigReader::kMaxSize) {
    reader.fail(fmt::format("{} heads of size {} are not usable, expected a width from 1 to {}",
                            config.n_heads, config.d_head, ConfigReader::kMaxSize));
  }
}

}  // namespace unpack::model
