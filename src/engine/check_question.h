// What can be wrong with a question once model and prompt are known; found before any work.
#pragma once

#include "unpack/model.h"
#include "unpack/options.h"

namespace unpack {

// Throws InputError for a position, node, component, branch, layer or token id that is not there,
// UsageError for a value out of its range.
void check_question(const Question& question, const Model& model, int length);

}  // namespace unpack
