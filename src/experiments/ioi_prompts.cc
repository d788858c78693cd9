#include <fmt/format.h>

#include "experiments/text_data.h"
#include "unpack/error.h"

namespace unpack::experiments {

namespace {

std::string fill(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

std::string with_names(const std::string& shape, const std::string& a, const std::string& b,
                       const std::string& s) {
  return fill(fill(fill(shape, "{A}", a), "{B}", b), "{S}", s);
}

// Positions of a name's token among the ids.
std::vector<int> occurrences(const Model& model, const std::vector<TokenId>& ids,
                             const std::string& name) {
  const TokenId spaced = model.single_token(" " + name);
  const std::vector<TokenId> bare = model.tokenizer().encode(name);
  std::vector<int> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == spaced || (bare.size() == 1 && ids[i] == bare[0])) out.push_back(i);
  }
  return out;
}

}  // namespace

std::vector<IoiPrompt> ioi_prompts(const Model& model, int n, std::uint64_t seed, bool three) {
  const std::vector<std::string> names = single_token_words(model, "names.txt");
  const std::vector<std::string> places = single_token_words(model, "places.txt");
  const std::vector<std::string> objects = single_token_words(model, "objects.txt");
  const TextFile templates = read_text(data_file("ioi_templates.txt"), true);
  if (names.size() < 3 || places.empty() || objects.empty()) {
    throw InputError(
        fmt::format("of the word lists, {} names, {} places and {} objects are one token of {}: "
                    "too few for this task",
                    names.size(), places.size(), objects.size(), model.config().name));
  }
  std::mt19937_64 generator(seed);
  const auto draw = [&](const auto& list) -> const auto& {
    return list[generator() % list.size()];
  };
  std::vector<IoiPrompt> out;
  for (int attempt = 0; static_cast<int>(out.size()) < n && attempt < 100 * n + 100; ++attempt) {
    IoiPrompt p;
    const std::string& shape = draw(templates.lines).text;
    p.io = draw(names);
    p.s = draw(names);
    p.third = draw(names);
    const std::string& place = draw(places);
    const std::string& object = draw(objects);
    const bool io_first = generator() % 2 == 0;
    if (p.io == p.s || p.io == p.third || p.s == p.third) continue;
    p.kind = three ? "ABC" : io_first ? "ABBA" : "BABA";
    p.shape = fill(fill(shape, "{place}", place), "{object}", object);
    p.text =
        with_names(p.shape, io_first ? p.io : p.s, io_first ? p.s : p.io, three ? p.third : p.s);
    p.ids = model.encode_prompt(p.text);
    const std::vector<int> io = occurrences(model, p.ids, p.io);
    const std::vector<int> s = occurrences(model, p.ids, p.s);
    const std::vector<int> third = occurrences(model, p.ids, p.third);
    // A name that splits at the start of the sentence would leave no single position.
    if (io.size() != 1 || s.size() != (three ? 1U : 2U) || (three && third.size() != 1)) continue;
    p.io_position = io[0];
    p.s1 = s[0];
    p.s2 = three ? third[0] : s[1];
    out.push_back(std::move(p));
  }
  if (static_cast<int>(out.size()) < n)
    throw InputError(fmt::format("only {} of {} prompts could be made of single tokens of {}",
                                 out.size(), n, model.config().name));
  return out;
}

std::vector<TokenId> ioi_corrupted(const Model& model, const IoiPrompt& prompt,
                                   std::uint64_t seed) {
  const std::vector<std::string> names = single_token_words(model, "names.txt");
  std::mt19937_64 generator(seed);
  const auto draw = [&]() -> const std::string& { return names[generator() % names.size()]; };
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::string a = draw(), b = draw(), c = draw();
    const auto taken = [&](const std::string& name) {
      return name == prompt.io || name == prompt.s;
    };
    if (a == b || a == c || b == c || taken(a) || taken(b) || taken(c)) continue;
    std::vector<TokenId> ids = model.encode_prompt(with_names(prompt.shape, a, b, c));
    // A name that splits at the start of the sentence would move everything after it.
    if (ids.size() == prompt.ids.size()) return ids;
  }
  throw InputError(fmt::format("no three other names fit '{}' in as many tokens of {}", prompt.text,
                               model.config().name));
}

}  // namespace unpack::experiments
