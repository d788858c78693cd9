// A GGUF file as a checkpoint: its metadata as config.json, its tensors under their Hugging Face
// names.
#pragma once

#include <string>

#include "model/checkpoint.h"
#include "model/family.h"
#include "model/gguf.h"

namespace unpack::model {

// Throws InputError that names an architecture, a type or a key that is not read.
std::string gguf_config(const GgufFiles& gguf);
Checkpoint gguf_checkpoint(const std::shared_ptr<const GgufFiles>& gguf);
ModelWeights load_gguf(const std::shared_ptr<const GgufFiles>& gguf, LookAt look = LookAt::loaded);

// tokenizer.ggml.* as tokenizer.json; empty where the file has none.
std::string gguf_tokenizer(const GgufFiles& gguf);
// The type that most bytes have, "Q4_K".
std::string gguf_quantisation(const Gguf& gguf);

}  // namespace unpack::model
