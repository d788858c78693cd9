// How nodes, paths and numbers are worded, shared by every text and picture.
#pragma once

#include <string>
#include <vector>

#include "unpack/result.h"

namespace unpack::report {

// The label on the arrow into a node: K, Q, V, G, U, R; empty where a hop has just one branch.
const char* hop_label(Branch branch);
// One piece per node with the arrow in front of it (and "-> target"); joined they are path_text.
std::vector<std::string> path_pieces(const Writers& writers, const TraceResult& result,
                                     const Path& path);

std::string signed_percent(double percent);  // "+14.5%", "-0.3%"
std::string signed_number(double value);     // three significant digits, always with its sign
std::string short_number(double value);      // three significant digits

std::string probability_text(double probability);  // "61.2%", "<0.1%"

double sum_of(const std::vector<double>& values);
double largest_magnitude(const std::vector<double>& values);
// Spec 8.2: the raw sum is negative or positive credit is under a tenth of the absolute total.
bool percent_misleads(const std::vector<double>& token_credit);

struct ComponentCredit {
  int writer = 0;
  double total = 0;   // over positions, direct and indirect
  double direct = 0;  // its importance
};
// Heads and MLPs that hold credit, the largest |total| first.
std::vector<ComponentCredit> ranked_components(const TraceResult& result);

// The experts of a layer at a position, "5 61%, 2 39%" with what each is weighted by; empty where
// the layer has none. Past `most` of them the rest are counted.
std::string experts_text(const ExpertUses& experts, int layer, int position, std::size_t most);
// The position whose prediction or output is explained.
int explained_position(const TraceResult& result);

std::string headline(const TraceResult& result, bool unicode);  // what was asked
// Of a net credit near nothing, against what made it up, or where a part is far from lying between
// nothing and the whole, shares would mislead.
bool shares_mislead(double net, double total, double gross_total);
std::string coverage_text(const TraceResult& result);  // what the listed paths hold, the net first
std::string conservation_text(const TraceResult& result);
std::string model_text(const ModelInfo& model, bool unicode);

}  // namespace unpack::report
