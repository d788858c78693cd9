// A compiled model as others can load it, with its questions and its true circuit beside it.
#pragma once

#include <filesystem>

#include "experiments/compiled/compiler.h"

namespace unpack::experiments::compiled {

// config.json, model.safetensors, and circuit.json: the program, its prompts and its true edges.
void save_with_circuit(const Program& program, const CompiledModel& model, const Settings& settings,
                       const std::filesystem::path& folder);

}  // namespace unpack::experiments::compiled
