// Typed access to config.json. A key of the wrong type or out of its range is an InputError that
// names file, key and what was expected.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"
#include "unpack/json.h"

namespace unpack::model {

class ConfigReader {
 public:
  // Sizes beyond this are taken for damage; it also keeps products of two sizes far from overflow.
  static constexpr std::int64_t kMaxSize = 100'000'000;

  ConfigReader(const JsonValue& object, std::string origin, std::string path = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }  // there, null included
  bool is_null(std::string_view key) const;                              // there and null
  const JsonValue* find(std::string_view key) const;
  std::optional<ConfigReader> object(std::string_view key) const;  // empty where missing or null

  // A missing or null key gives the default.
  int size(std::string_view key, int fallback) const;  // 1 .. kMaxSize
  int size(std::initializer_list<std::string_view> aliases,
           int fallback) const;  // the first that is there
  std::optional<int> optional_size(std::string_view key) const;
  int layers(std::initializer_list<std::string_view> aliases, int fallback) const;  // believable
  double positive(std::string_view key, double fallback) const;                     // finite, > 0
  double required_positive(std::string_view key) const;
  std::optional<double> optional_positive(std::string_view key) const;
  double number(std::string_view key, double fallback) const;  // finite
  std::vector<double> positives(std::string_view key) const;   // a list; empty where missing
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::optional<std::int64_t> integer(std::string_view key) const;

  [[noreturn]] void fail(const std::string& what) const;  // "FILE: what"
  const std::string& origin() const { return origin_; }
  std::string name(std::string_view key) const { return path_ + std::string(key); }

 private:
  const JsonValue* find_value(std::string_view key) const;  // nullptr where null
  const JsonValue* object_;
  std::string origin_;
  std::string path_;  // "rope_scaling." for keys of an inner object
};

Activation read_activation(const ConfigReader& reader, std::string_view key,
                           std::string_view fallback);
// What reading the rotary part of a config needs to know of its family.
struct RopeKeys {
  int d_head = 0;
  int context = 0;                            // max_position_embeddings
  std::string_view theta_key = "rope_theta";  // what the family called them
  std::string_view share_key = "partial_rotary_factor";
  double share = 1.0;
  double base = 10000.0;
  bool old_names = false;  // the types "su" and "yarn" mean longrope (Phi-3)
  int original = 0;        // default of original_max_position_embeddings; 0: it must be given
};
// Old keys (theta_key, share_key, rope_scaling) and new ones (rope_parameters).
Rope read_rope(const ConfigReader& reader, const RopeKeys& keys);
// The rotary part that `parameters` alone describes.
Rope read_rope_parameters(const ConfigReader& reader, const ConfigReader& parameters,
                          const RopeKeys& keys);

// Which layers slide: `layer_types` where it is given, `otherwise(layer)` where not.
std::vector<bool> read_sliding(const ConfigReader& reader, int n_layers,
                               const std::function<bool(int)>& otherwise);

// The token, where it lies in the vocabulary; `fallback` < 0: the family has none by default.
std::optional<TokenId> read_bos(const ConfigReader& reader, int vocab_size, TokenId fallback);
// The tokens that end a text: one or a list; `fallback` < 0: none by default.
std::vector<TokenId> read_end(const ConfigReader& reader, int vocab_size, TokenId fallback);
DType read_dtype(const ConfigReader& reader);
// Checks that fit every family: heads divide the width where d_head follows from them, heads share
// key/value heads evenly, even rotary size.
void check_shape(const ConfigReader& reader, const ModelConfig& config);

}  // namespace unpack::model
