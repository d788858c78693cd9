// Normalisers, pre-tokenizers and decoders are written the same way: null, one object with a
// "type", or a Sequence of such.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"

namespace unpack::tokenizer {

constexpr std::size_t kMaxSteps = 64;

// The single steps of the field in order, with sequences laid flat. `list` is what a Sequence calls
// its steps.
std::vector<Fields> flat_steps(const Fields& file, const char* field, const char* list);

// {"String": "..."} or {"Regex": "..."}; an empty string never matches.
Regex read_pattern(const Fields& step, const char* key);

// A step's field that holds exactly one character.
std::string read_char(const Fields& step, const char* key);

// How long a text of that many bytes may become: real steps at most triple it, a hostile chain of
// replacements doubles it at each.
constexpr std::size_t growth_limit(std::size_t size) { return 16 * size + (1 << 16); }

}  // namespace unpack::tokenizer
