#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "base/message.h"
#include "unpack/error.h"

namespace unpack {

ConfigReader::ConfigReader(const nlohmann::json& object, std::string origin, std::string path)
    : object_(&object), origin_(std::move(origin)), path_(std::move(path)) {}

void ConfigReader::fail(const std::string& what) const {
  throw InputError(fmt::format("{}: {}", origin_, what));
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() ? nullptr : &*it;
}

const nlohmann::json* ConfigReader::find_value(std::string_view key) const {
  const nlohmann::json* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool ConfigReader::is_null(std::string_view key) const {
  const nlohmann::json* value = find(key);
  return value != nullptr && value->is_null();
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const nlohmann::json* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object())
    fail(fmt::format("{} is {}, expected a JSON object", name(key), value->type_name()));
  return ConfigReader(*value, origin_, name(key) + ".");
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key) const {
  const nlohmann::json* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::abs(value->get<double>()) < 1e15 &&
                      std::floor(value->get<double>()) == value->get<double>());
  if (!whole)
    fail(fmt::format("{} is {}, expected a whole number", name(key),
                     shown(value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))));
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
  return static_cast<int>(*value);
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
  const nlohmann::json* value = find_value(key);
  if (value == nullptr) return fallback;
  if (!value->is_number())
    fail(fmt::format("{} is {}, expected a number", name(key), value->type_name()));
  const double number = value->get<double>();
  if (!std::isfinite(number) || number <= 0)
    fail(fmt::format("{} is {}, expected a number above 0", name(key), number));
  return number;
}

double ConfigReader::required_positive(std::string_view key) const {
  if (find_value(key) == nullptr)
    fail(fmt::format("{} is missing, expected a number above 0", name(key)));
  return positive(key, 0);
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const nlohmann::json* value = find_value(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean())
    fail(fmt::format("{} is {}, expected true or false", name(key), value->type_name()));
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const nlohmann::json* value = find_value(key);
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
                  key, shown(name)));
}

Rope read_rope(const ConfigReader& reader, int d_head, std::string_view theta_key,
               std::string_view pct_key, double default_pct) {
  const std::optional<ConfigReader> fresh = reader.object("rope_parameters");
  const std::optional<ConfigReader> old = reader.object("rope_scaling");
  Rope rope;
  rope.base = reader.positive(theta_key, reader.positive("rope_theta", 10000.0));
  double pct = reader.positive(pct_key, reader.positive("partial_rotary_factor", default_pct));
  if (fresh) {
    rope.base = fresh->positive("rope_theta", rope.base);
    pct = fresh->positive("partial_rotary_factor", pct);
  }
  if (rope.base <= 1.0)
    reader.fail(fmt::format("rotary base {} is not usable, expected a number above 1", rope.base));
  if (pct > 1.0)
    reader.fail(
        fmt::format("rotary share {} of a head is not usable, expected a number from 0 to 1", pct));
  rope.dims = static_cast<int>(pct * d_head);
  if (rope.dims < 2 || rope.dims % 2 != 0) {
    reader.fail(fmt::format(
        "{} of the {} dimensions of a head would be rotated, expected an even number from 2",
        rope.dims, d_head));
  }

  // rope_parameters holds what rope_scaling held; a file that has both repeats itself.
  const std::optional<ConfigReader>& scaling = fresh ? fresh : old;
  if (!scaling) return rope;
  const std::string type = scaling->text("rope_type", scaling->text("type", "default"));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") {
    reader.fail(fmt::format("rope type {} is not supported (supported: default, linear, llama3)",
                            shown(type)));
  }
  rope.factor = scaling->required_positive("factor");
  rope.scaling = RopeScaling::linear;
  if (type == "llama3") {
    rope.scaling = RopeScaling::llama3;
    rope.low_freq_factor = scaling->required_positive("low_freq_factor");
    rope.high_freq_factor = scaling->required_positive("high_freq_factor");
    rope.original_context = scaling->required_positive("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      reader.fail(fmt::format("{} is {}, expected more than low_freq_factor {}",
                              scaling->name("high_freq_factor"), rope.high_freq_factor,
                              rope.low_freq_factor));
    }
  }
  return rope;
}

std::optional<TokenId> read_bos(const ConfigReader& reader, int vocab_size, TokenId fallback) {
  if (reader.is_null("bos_token_id")) return std::nullopt;
  const std::int64_t id = reader.integer("bos_token_id").value_or(fallback);
  if (id < 0 || id >= vocab_size) return std::nullopt;
  return static_cast<TokenId>(id);
}

DType read_dtype(const ConfigReader& reader) {
  const std::string name = reader.text("torch_dtype", reader.text("dtype", "float32"));
  if (name == "float16") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float64") return DType::f64;
  return DType::f32;  // only a hint; what the file holds counts
}

void check_shape(const ConfigReader& reader, const ModelConfig& config) {
  constexpr int kMaxLayers = 10'000;
  if (config.n_layers > kMaxLayers)
    reader.fail(fmt::format("{} layers are more than the {} that are believable", config.n_layers,
                            kMaxLayers));
  if (config.n_heads % config.n_kv_heads != 0) {
    reader.fail(fmt::format("{} query heads cannot share {} key/value heads evenly", config.n_heads,
                            config.n_kv_heads));
  }
  if (config.d_head < 1 || std::int64_t{config.n_heads} * config.d_head > ConfigReader::kMaxSize) {
    reader.fail(fmt::format("{} heads of size {} are not usable, expected a width from 1 to {}",
                            config.n_heads, config.d_head, ConfigReader::kMaxSize));
  }
}

}  // namespace unpack
