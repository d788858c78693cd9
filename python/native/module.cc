// unpack_engine._native: the engine as Python sees it. The package around it (unpack_engine/*.py)
// checks arguments and gives results their face.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <string>
#include <system_error>

#include "bind.h"
#include "call.h"
#include "unpack/about.h"
#include "unpack/error.h"
#include "unpack/models.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const InputError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const KindError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const UsageError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const std::system_error& error) {
    PyErr_SetString(PyExc_OSError, Error(error.what()).what());
  }
}

std::string locate(const std::string& name) {
  try {
    const py::gil_scoped_release release;
    return locate_model(name).string();
  } catch (const InputError& error) {
    throw py::value_error(error.what());
  }
}

py::list models(const std::vector<std::filesystem::path>& extra) {
  py::list out;
  for (const FoundModel& model : list_models(extra)) {
    py::dict row;
    row["name"] = model.name;
    row["folder"] = model.folder.string();
    row["origin"] = model.origin;
    row["family"] = model.family;
    row["problem"] = model.problem;
    out.append(std::move(row));
  }
  return out;
}

}  // namespace
}  // namespace unpack::python

PYBIND11_MODULE(_native, module) {
  using namespace unpack::python;
  py::register_exception_translator(&translate);
  module.def("about", [] {
    const unpack::About about = unpack::about();
    py::dict out;
    out["version"] = about.version;
    out["build_type"] = about.build_type;
    out["installed"] = about.installed;
    out["kernels"] = about.kernels;
    out["devices"] = about.devices;
    return out;
  });
  module.def("version", &unpack::version);
  module.def("diagnosis_json", [] {
    const py::gil_scoped_release release;
    return unpack::diagnosis_json(unpack::diagnose());
  });
  module.def("close_down", &close_down, py::call_guard<py::gil_scoped_release>());
  module.def("locate", &locate, py::arg("name"));
  module.def("models", &models, py::arg("extra"));
  module.def("families", &unpack::supported_families);
  bind_question(module);
  bind_results(module);
  bind_model(module);
  bind_prepared(module);
  bind_ask(module);
  bind_experiment(module);
  bind_batch(module);
  bind_circuit(module);
}
