#include "experiments/compiled/measures.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace unpack::experiments::compiled {

double auroc(const std::vector<double>& positive, const std::vector<double>& negative) {
  if (positive.empty() || negative.empty()) return 1.0;
  double sum = 0;
  for (const double p : positive) {
    for (const double n : negative) sum += p > n ? 1.0 : (p == n ? 0.5 : 0.0);
  }
  return sum / (positive.size() * negative.size());
}

double average_precision(const std::vector<double>& positive, const std::vector<double>& negative) {
  if (positive.empty()) return 1.0;
  double sum = 0;
  for (const double p : positive) {
    const auto at_least = [&](double x) { return x >= p; };
    const double hits = std::count_if(positive.begin(), positive.end(), at_least);
    const double misses = std::count_if(negative.begin(), negative.end(), at_least);
    sum += hits / (hits + misses);
  }
  return sum / positive.size();
}

Measures measure_edges(const Program& program, const std::vector<double>& edges) {
  Measures out;
  std::vector<double> yes, no;
  std::map<std::string, double> strongest, decoy;  // by reader
  const std::vector<EdgeName> names = program.edges();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double size = edges[i];
    switch (program.truth(names[i])) {
      case Truth::yes:
        yes.push_back(size);
        strongest[names[i].reader] = std::max(strongest[names[i].reader], size);
        break;
      case Truth::no:
        no.push_back(size);
        break;
      case Truth::neutral:
        break;
    }
    if (program.from_dead(names[i])) out.dead = std::max(out.dead, size);
    if (program.from_decoy(names[i]))
      decoy[names[i].reader] = std::max(decoy[names[i].reader], size);
  }
  out.auroc = auroc(yes, no);
  out.auprc = average_precision(yes, no);
  out.smallest = yes.empty() ? 0.0 : *std::min_element(yes.begin(), yes.end());
  out.largest_false = no.empty() ? 0.0 : *std::max_element(no.begin(), no.end());
  for (const auto& [reader, size] : decoy) {
    const auto found = strongest.find(reader);
    if (found != strongest.end() && found->second > 0)
      out.decoy = std::max(out.decoy, size / found->second);
  }
  out.token_auroc = out.token_auprc = out.token_smallest = NAN;
  return out;
}

void measure_tokens(const Program& program, const std::vector<std::vector<double>>& tokens,
                    Measures& measures) {
  double roc = 0, precision = 0, smallest = INFINITY;
  int prompts = 0;
  for (std::size_t p = 0; p < tokens.size(); ++p) {
    if (tokens[p].empty()) return;
    const Prompt& prompt = program.prompts[p];
    double total = 0;
    for (const double x : tokens[p]) total += std::fabs(x);
    std::vector<double> yes, no;
    for (std::size_t s = 0; s < tokens[p].size(); ++s) {
      const double size = total > 0 ? std::fabs(tokens[p][s]) / total : 0.0;
      const bool is_true = std::find(prompt.tokens.begin(), prompt.tokens.end(),
                                     static_cast<int>(s)) != prompt.tokens.end();
      // A Llama reads its constant from the last token: that counts for nobody.
      if (!is_true && program.format == Format::llama && s + 1 == tokens[p].size()) continue;
      (is_true ? yes : no).push_back(size);
    }
    roc += auroc(yes, no);
    precision += average_precision(yes, no);
    smallest = std::min(smallest, *std::min_element(yes.begin(), yes.end()));
    ++prompts;
  }
  if (prompts == 0) return;
  measures.token_auroc = roc / prompts;
  measures.token_auprc = precision / prompts;
  measures.token_smallest = smallest;
}

}  // namespace unpack::experiments::compiled
