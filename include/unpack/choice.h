// Fields that take one of a few words. What a value is called stands in its to_string alone.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "unpack/fields.h"

namespace unpack {

template <class T>
using Words = std::vector<std::pair<std::string, T>>;

// The values of an enumeration with their words.
template <class List>
auto words_of(const List& values) {
  Words<typename List::value_type> words;
  for (const auto value : values) words.emplace_back(to_string(value), value);
  return words;
}

// UsageError or KindError, as all readers of fields throw them.
template <class T>
T read_word(const std::string& name, const Field& field, const Words<T>& words) {
  std::vector<std::string> names;
  names.reserve(words.size());
  for (const auto& word : words) names.push_back(word.first);
  return words[read_choice(name, field, names)].second;
}

}  // namespace unpack
