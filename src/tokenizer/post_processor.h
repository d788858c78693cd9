// What the file's post-processor puts in front of a single text.
#pragma once

#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/vocabulary.h"
#include "unpack/config.h"

namespace unpack::tokenizer {

// Reads "post_processor". Throws InputError for what is not supported and for ids that the
// vocabulary lacks.
std::vector<TokenId> read_prefix(const Fields& file, const Vocabulary& vocabulary);

}  // namespace unpack::tokenizer
