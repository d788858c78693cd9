#include "unpack/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "report/labels.h"
#include "report/text.h"
#include "unpack/json.h"

namespace unpack {
namespace {

bool is_punctuation(char c) {
  return std::ispunct(static_cast<unsigned char>(c)) && c != '\'' && c != '-' && c != '_';
}

bool starts_word(const std::string& before, const std::string& text) {
  if (before.empty() || text.empty()) return !text.empty();
  const char last = before.back(), first = text.front();
  return report::is_special_token(before) || report::is_special_token(text) ||
         std::isspace(static_cast<unsigned char>(first)) || last == '\n' || is_punctuation(last) ||
         is_punctuation(first);
}

}  // namespace

std::vector<WordCredit> merge_words(const std::vector<Token>& tokens,
                                    const std::vector<double>& credit) {
  std::vector<WordCredit> words;
  double positive = 0;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const int position = s;
    if (s == 0 || starts_word(tokens[s - 1].text, tokens[s].text))
      words.push_back({position, position, "", 0, 0});
    WordCredit& word = words.back();
    word.last = position;
    word.text += tokens[s].text;
    if (s < credit.size()) word.credit += credit[s];
  }
  for (const WordCredit& word : words) positive += std::max(word.credit, 0.0);
  for (WordCredit& word : words) word.percent = positive > 0 ? 100 * word.credit / positive : 0;
  return words;
}

std::vector<PathGroup> group_paths(std::span<const TraceResult> results, const RoleOf& role_of) {
  struct Sum {
    PathGroup group;
    double credit = 0, absolute = 0;
    std::size_t last_prompt = -1;
  };
  std::map<std::string, Sum> sums;
  double mass = 0;
  for (std::size_t p = 0; p < results.size(); ++p) {
    const TraceResult& r = results[p];
    mass += r.coverage.absolute_total;
    const Writers writers = r.writer_table();
    for (const Path& path : r.paths) {
      std::string text;
      for (std::size_t i = 0; i < path.nodes.size(); ++i) {
        const char* hop =
            i > 0 && i < path.branches.size() ? report::hop_label(path.branches[i]) : "";
        if (i > 0) text += *hop ? fmt::format(" -[{}]-> ", hop) : " -> ";
        text += writers.name(path.nodes[i].writer);
        if (const std::string role = role_of ? role_of(p, path.nodes[i].position) : "";
            !role.empty())
          text += fmt::format("[{}]", role);
      }
      if (!r.root) text += text.empty() ? "target" : " -> target";
      Sum& sum = sums[text];
      ++sum.group.count;
      if (sum.last_prompt != p) ++sum.group.prompts;
      sum.last_prompt = p;
      sum.credit += path.credit;
      sum.absolute += std::abs(path.credit);
    }
  }
  std::vector<PathGroup> groups;
  for (auto& [text, sum] : sums) {
    sum.group.text = text;
    sum.group.mean_credit = sum.credit / results.size();
    sum.group.share = mass > 0 ? sum.absolute / mass : 0;
    groups.push_back(std::move(sum.group));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const PathGroup& a, const PathGroup& b) {
    return std::abs(a.mean_credit) > std::abs(b.mean_credit);
  });
  return groups;
}

std::string to_json(const std::vector<PathGroup>& groups) {
  OrderedJson list = OrderedJson::array();
  for (const PathGroup& g : groups) {
    list.push_back({{"text", g.text},
                    {"count", g.count},
                    {"prompts", g.prompts},
                    {"mean_credit", g.mean_credit},
                    {"share", g.share}});
  }
  return list.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string to_text(const std::vector<PathGroup>& groups, std::size_t top) {
  std::string out = "mean credit   share  prompts  path\n";
  for (std::size_t i = 0; i < std::min(top, groups.size()); ++i) {
    const PathGroup& g = groups[i];
    out += fmt::format("{:>11}  {:>5.1f}%  {:>7}  {}\n", report::signed_number(g.mean_credit),
                       100 * g.share, g.prompts, report::visible(g.text, {true}));
  }
  if (groups.size() > top)
    out += fmt::format("{} weaker groups are not shown\n", groups.size() - top);
  return out;
}

}  // namespace unpack
