// Typed access to config.json. A key of the wrong type or out of its range is an InputError that
// names file, key and what was expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "unpack/config.h"

namespace unpack {

class ConfigReader {
 public:
  // Sizes beyond this are taken for damage; it also keeps products of two sizes far from overflow.
  static constexpr std::int64_t kMaxSize = 100'000'000;

  ConfigReader(const nlohmann::json& object, std::string origin, std::string path = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }  // there, null included
  bool is_null(std::string_view key) const;                              // there and null
  const nlohmann::json* find(std::string_view key) const;
  std::optional<ConfigReader> object(std::string_view key) const;  // empty where missing or null

  // A missing or null key gives the default.
  int size(std::string_view key, int fallback) const;  // 1 .. kMaxSize
  int size(std::initializer_list<std::string_view> aliases,
           int fallback) const;  // the first that is there
  std::optional<int> optional_size(std::string_view key) const;
  double positive(std::string_view key, double fallback) const;  // finite, > 0
  double required_positive(std::string_view key) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::optional<std::int64_t> integer(std::string_view key) const;

  [[noreturn]] void fail(const std::string& what) const;  // "FILE: what"
  const std::string& origin() const { return origin_; }
  std::string name(std::string_view key) const { return path_ + std::string(key); }

 private:
  const nlohmann::json* find_value(std::string_view key) const;  // nullptr where null
  const nlohmann::json* object_;
  std::string origin_;
  std::string path_;  // "rope_scaling." for keys of an inner object
};

Activation read_activation(const ConfigReader& reader, std::string_view key,
                           std::string_view fallback);
// Old keys (theta_key, pct_key, rope_scaling) and new ones (rope_parameters). theta_key and pct_key
// are what the family called them before.
Rope read_rope(const ConfigReader& reader, int d_head, std::string_view theta_key,
               std::string_view pct_key, double default_pct);
// The token, where it lies in the vocabulary; `fallback` < 0: the family has none by default.
std::optional<TokenId> read_bos(const ConfigReader& reader, int vocab_size, TokenId fallback);
DType read_dtype(const ConfigReader& reader);
// Checks that fit every family: heads divide the width where d_head follows from them, heads share
// key/value heads evenly, even rotary size.
void check_shape(const ConfigReader& reader, const ModelConfig& config);

}  // namespace unpack
