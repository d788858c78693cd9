// Every command of the program. A new one is a file cmd_<name>.cc and one line in kCommands
// (commands.cc).
#pragma once

#include "command.h"
#include "context.h"

namespace unpack::cli {

void add_commands(App& app, Context& context);

using AddCommand = void(App& app, Context& context);
AddCommand add_trace, add_predict, add_tokenize, add_interactions, add_validate, add_attribute,
    add_generate, add_intervene, add_batch, add_experiment, add_merge, add_models, add_bench,
    add_serve, add_doctor, add_completion, add_manual, add_sources, add_circuit;

}  // namespace unpack::cli
