#include "commands.h"

namespace unpack::cli {
namespace {

// In the order of `unpack --help`.
constexpr AddCommand* kCommands[] = {
    add_trace,         //
    add_predict,       //
    add_attribute,     //
    add_sources,       //
    add_interactions,  //
    add_intervene,     //
    add_batch,         //
    add_experiment,    //
    add_circuit,       //
    add_merge,         //
    add_generate,      //
    add_tokenize,      //
    add_validate,      //
    add_models,        //
    add_bench,         //
    add_doctor,        //
    add_serve,         //
    add_completion,    //
    add_manual,        //
};

}  // namespace

void add_commands(App& app, Context& context) {
  for (AddCommand* add : kCommands) add(app, context);
}

}  // namespace unpack::cli
