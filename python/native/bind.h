// The parts of the module, each in its own file.
#pragma once

#include <pybind11/pybind11.h>

namespace unpack::python {

void bind_question(pybind11::module_& module);
void bind_results(pybind11::module_& module);
void bind_model(pybind11::module_& module);
void bind_prepared(pybind11::module_& module);
void bind_ask(pybind11::module_& module);
void bind_experiment(pybind11::module_& module);
void bind_batch(pybind11::module_& module);
void bind_circuit(pybind11::module_& module);

}  // namespace unpack::python
