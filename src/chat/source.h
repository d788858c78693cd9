// The chat template of a GGUF file that is open already.
#pragma once

#include "model/gguf.h"
#include "unpack/chat.h"

namespace unpack::chat {

ChatSource gguf_chat_source(const model::GgufFiles& gguf);

}  // namespace unpack::chat
