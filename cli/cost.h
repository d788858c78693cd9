// --cost, and a word beforehand about what is going to be long.
#pragma once

#include <span>

#include "command.h"
#include "context.h"
#include "unpack/model.h"

namespace unpack::cli {

struct CostArguments {
  bool only = false;

  void add(Command& command);
  // Of a question about `tokens` tokens with so many targets, before it is asked: with --cost what
  // it will cost, and true: nothing else is to be done. Otherwise a line on stderr where it will
  // take long.
  bool say(const Model& model, std::span<const TokenId> ids, int tokens, int rows,
           const RunContext& run) const;
};

}  // namespace unpack::cli
