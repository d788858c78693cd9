// A file of text that goes with a question: a conversation, a template.
#pragma once

#include <string>

namespace unpack {

// The whole of it. Throws InputError where it is no plain file (a folder, a pipe, a device), cannot
// be read, or is larger than 16 MiB.
std::string read_given_file(const std::string& name);

}  // namespace unpack
