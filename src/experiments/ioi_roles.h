// Which head plays which part in indirect-object identification: from a table, or found by
// intervention.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/session.h"
#include "experiments/text_data.h"

namespace unpack::experiments {

struct HeadRole {
  std::string name;
  std::string
      root;  // where the experiment reroots at its heads: END, S2, S1, S1+1, IO; "-": nowhere
  std::vector<int> heads;  // writers
};

// `role | root | heads` a line. Throws InputError with the line's number for what does not fit the
// model.
std::vector<HeadRole> read_roles(const Writers& writers, const std::filesystem::path& file);

// What path patching saw on the way to the roles.
struct RoleSearch {
  Json report;                     // a row a head
  double attention_halfwidth = 0;  // the widest of the intervals of the attention in it
  std::vector<int> candidates;     // for name movers, where no head is one
};

// Path patching on the first prompts, with names exchanged, and what heads attend to. `search` gets
// effects and scores of the heads found. How many of them it takes:
std::size_t search_prompts(std::size_t prompts);
std::vector<HeadRole> find_roles(ModelSession& session, const std::vector<IoiPrompt>& prompts,
                                 RoleSearch& found);

// The token position a root's name stands for.
int position_named(const IoiPrompt& prompt, const std::string& name);

// Cells of `a | b | c`, without the blanks around them.
std::vector<std::string> cells_of(const std::string& line);
// Writers of a list such as "A5.H1 MLP3".
std::vector<int> writers_of(const Writers& writers, const std::string& list);

}  // namespace unpack::experiments
