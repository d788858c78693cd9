// Bringing results together: subword tokens to words, paths of many prompts to groups.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "unpack/result.h"

namespace unpack {

struct WordCredit {
  int first = 0, last = 0;  // positions, both included
  std::string text;
  double credit = 0;
  double percent = 0;  // of the total positive credit of the words
};

// A word starts at a token that begins with a blank, follows a line break or punctuation, or is
// punctuation itself; special tokens such as BOS stand alone.
std::vector<WordCredit> merge_words(const std::vector<Token>& tokens,
                                    const std::vector<double>& credit);

// Paths that take the same components and branches at positions of the same roles, whatever the
// positions are.
struct PathGroup {
  std::string text;         // emb[S2] -> MLP0[S2] -[V]-> A8.H6[end] -> target
  std::size_t count = 0;    // paths in it
  std::size_t prompts = 0;  // prompts that have one
  double mean_credit = 0;   // summed within a prompt, mean over all prompts
  double share = 0;         // of the absolute mass of all paths of all prompts
};

// Names the role that a position plays in a prompt ("IO", "S1", "end"); an empty name groups by
// component alone.
using RoleOf = std::function<std::string(std::size_t prompt, int position)>;

// The largest |mean credit| first.
std::vector<PathGroup> group_paths(std::span<const TraceResult> results, const RoleOf& role_of);

std::string to_json(const std::vector<PathGroup>& groups);
std::string to_json(const std::vector<WordCredit>& words);
std::string to_text(const std::vector<PathGroup>& groups, std::size_t top = 20);

}  // namespace unpack
