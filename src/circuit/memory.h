// What a search has computed so far, so that an interrupted one goes on where it stopped.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "unpack/circuit.h"

namespace unpack::circuit {

// The values of that name, computed where they are not known yet. Without a memory: computed.
std::vector<double> recalled(CircuitMemory* memory, const std::string& name,
                             const std::function<std::vector<double>()>& compute);

// A short name of any bytes (FNV-1a).
std::string short_name(const char* bytes, std::size_t size);

}  // namespace unpack::circuit
