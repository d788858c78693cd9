// --cost, and a word beforehand about what is going to be long.
#pragma once

#include <span>

#include "command.h"
#include "context.h"
#include "unpack/cost.h"

namespace unpack::cli {

struct CostArguments {
  bool only = false;

  void add(Command& command);
  // Before the question is asked: with --cost what it will cost, and true: nothing else is to be
  // done. Otherwise a line on stderr where it will take long.
  bool say(const Model& model, std::span<const TokenId> prompt, const Planned& planned,
           const RunContext& run) const;
};

}  // namespace unpack::cli
