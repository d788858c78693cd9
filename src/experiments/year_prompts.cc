// Prompts of the greater-than task.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "experiments/text_data.h"
#include "unpack/error.h"

namespace unpack::experiments {

namespace {

std::string two_digits(int value) { return fmt::format("{:02}", value); }

// [" XX", "YY"], or nothing where the year is split in another way.
std::optional<std::pair<TokenId, TokenId>> split(const Model& model, int year) {
  const std::vector<TokenId> ids = model.tokenizer().encode(fmt::format(" {}", year));
  if (ids.size() != 2 ||
      model.tokenizer().decode(std::vector<TokenId>{ids[0]}) != fmt::format(" {}", year / 100) ||
      model.tokenizer().decode(std::vector<TokenId>{ids[1]}) != two_digits(year % 100)) {
    return std::nullopt;
  }
  return std::pair{ids[0], ids[1]};
}

std::map<int, std::vector<int>> two_token_years(const Model& model) {
  std::map<int, std::vector<int>> out;  // by century
  for (int year = 1000; year < 1900; ++year) {
    if (split(model, year)) out[year / 100].push_back(year);
  }
  return out;
}

std::string sentence(const std::string& noun, int year) {
  return fmt::format("The {} lasted from the year {} to the year {}", noun, year, year / 100);
}

}  // namespace

std::vector<int> usable_years(const Model& model) {
  std::vector<int> out;
  for (const auto& [century, years] : two_token_years(model)) {
    if (years.size() > 2) out.insert(out.end(), years.begin() + 1, years.end() - 1);
  }
  return out;
}

std::vector<YearPrompt> year_prompts(const Model& model, int n, std::uint64_t seed) {
  std::vector<std::string> nouns;
  for (const TextLine& line : read_text(data_file("greater_than_nouns.txt"), true).lines)
    nouns.push_back(line.text);
  const auto by_century = two_token_years(model);
  std::map<int, std::vector<int>> by_ending;
  for (const int year : usable_years(model)) by_ending[year % 100].push_back(year);
  std::vector<int> endings;
  for (const auto& [ending, years] : by_ending) endings.push_back(ending);
  if (endings.empty()) {
    throw InputError(
        fmt::format("the tokenizer of {} does not split years such as 1732 into ' 17' and '32': "
                    "this task needs a model that does",
                    model.info().name));
  }
  std::vector<std::pair<int, TokenId>> digits;  // single tokens of two digits
  for (int y = 0; y < 100; ++y) {
    const std::vector<TokenId> ids = model.tokenizer().encode(two_digits(y));
    if (ids.size() == 1) digits.emplace_back(y, ids[0]);
  }
  std::mt19937_64 generator(seed);
  std::vector<YearPrompt> out;
  for (int i = 0; i < n; ++i) {
    const std::size_t at = n == 1 ? endings.size() / 2 : i * (endings.size() - 1) / (n - 1);
    const std::vector<int>& years = by_ending.at(endings[at]);
    YearPrompt p;
    p.year = years[generator() % years.size()];
    const std::string& noun = nouns[generator() % nouns.size()];
    p.text = sentence(noun, p.year);
    p.ids = model.encode_prompt(p.text);
    const auto [century, ending] = *split(model, p.year);
    const std::array<TokenId, 2> pair = {century, ending};
    const auto place = std::search(p.ids.begin(), p.ids.end(), pair.begin(), pair.end());
    if (place == p.ids.end() || p.ids.back() != century) {
      throw InputError(fmt::format("'{}' does not end with a token of two digits in {}", p.text,
                                   model.info().name));
    }
    p.yy = place - p.ids.begin() + 1;
    for (const auto& [y, id] : digits) (y > p.year % 100 ? p.above : p.up_to).push_back(id);
    const std::vector<int>& whole = by_century.at(p.year / 100);
    const int first = p.year / 100 * 100 + 1;
    p.corrupted = p.ids;
    p.corrupted[p.yy] =
        split(model,
              std::find(whole.begin(), whole.end(), first) != whole.end() ? first : whole.front())
            ->second;
    out.push_back(std::move(p));
  }
  return out;
}

}  // namespace unpack::experiments
