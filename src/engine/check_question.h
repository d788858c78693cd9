// What can be wrong with a question once model and prompt are known; found before any work.
#pragma once

#include <span>

#include "unpack/model.h"
#include "unpack/options.h"

namespace unpack::engine {

// Throws InputError for a position, node, component, layer or token id that is not there,
// UsageError for a value out of its range.
void check_question(const Question& question, const Model& model, int length);
// InputError for one that is outside the vocabulary.
void check_ids(std::span<const TokenId> ids, const char* field, int vocabulary);
// A line for every filter that no path of this model and prompt can match.
std::vector<std::string> empty_filters(const PathQuery& query, const ModelConfig& config,
                                       int length);

}  // namespace unpack::engine
