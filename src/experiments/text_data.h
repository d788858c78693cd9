// Text that experiments run on: corpora, word lists and prompts generated from them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "unpack/model.h"

namespace unpack::experiments {

struct TextLine {
  int line = 0;  // from 1
  std::string text;
};

struct TextFile {
  std::vector<TextLine> lines;        // empty ones and those that begin with # left out
  std::vector<std::string> problems;  // bad lines, with their number
};
// A line that is not UTF-8 is a problem; with `stop` an InputError.
TextFile read_text(const std::filesystem::path& file, bool stop);

// A file of the program's data folder: UNPACK_DATA, the source tree, or where it was installed.
std::filesystem::path data_file(const std::string& name);

// The same order for a seed with every standard library.
template <typename T>
void shuffle(std::vector<T>& values, std::mt19937_64& generator) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[generator() % i]);
}

// Entries of a word list that are one token after a space; the others are left out.
std::vector<std::string> single_token_words(const Model& model, const std::string& list);

struct IoiPrompt {
  std::string text;   // without the answer
  std::string io, s;  // names
  std::string kind;   // "ABBA", "BABA", "ABC"
  std::vector<TokenId> ids;
  int io_position = 0, s1 = 0,
      s2 = 0;         // tokens of the names; ABC: s1 the second name, s2 the third one's slot
  std::string third;  // ABC: the third name
  std::string shape;  // the text with {A}, {B} and {S} in place of the names
};
// `three` : matched prompts with a third name where the repeated one stood.
std::vector<IoiPrompt> ioi_prompts(const Model& model, int n, std::uint64_t seed, bool three);
// The same sentence with three other names, none of them twice: as many tokens, and no answer.
std::vector<TokenId> ioi_corrupted(const Model& model, const IoiPrompt& prompt, std::uint64_t seed);

struct YearPrompt {
  std::string text;  // without the answer
  int year = 0;
  std::vector<TokenId> ids;
  int yy = 0;                         // position of the year's last two digits
  std::vector<TokenId> above, up_to;  // two-digit tokens above them, and up to them
  std::vector<TokenId>
      corrupted;  // the same with the century's 01 (or its first year of two tokens)
};
// Years in [1000, 1900) that are a token of two digits after a token of two digits, without each
// century's first and last one; ascending.
std::vector<int> usable_years(const Model& model);
// "The {noun} lasted from the year 1732 to the year 17", the last two digits swept evenly. Throws
// InputError where years are not split so.
std::vector<YearPrompt> year_prompts(const Model& model, int n, std::uint64_t seed);

}  // namespace unpack::experiments
