// unpack_engine._native: the engine as Python sees it. The package around it (unpack_engine/*.py)
// checks arguments and gives results their face.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <string>

#include "bind.h"
#include "unpack/about.h"
#include "unpack/error.h"
#include "unpack/models.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

// The engine names options as the command line does; here they are arguments: --top-paths is
// top_paths.
std::string in_python_words(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool option = text.compare(i, 2, "--") == 0 && i + 2 < text.size() &&
                        text[i + 2] >= 'a' && text[i + 2] <= 'z' && (i == 0 || text[i - 1] != '-');
    if (!option) {
      out += text[i++];
      continue;
    }
    for (i += 2; i < text.size() && (text[i] == '-' || (text[i] >= 'a' && text[i] <= 'z')); ++i)
      out += text[i] == '-' ? '_' : text[i];
  }
  return out;
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const InputError& error) {
    PyErr_SetString(PyExc_ValueError, in_python_words(error.what()).c_str());
  } catch (const UsageError& error) {
    PyErr_SetString(PyExc_ValueError, in_python_words(error.what()).c_str());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

std::string locate(const std::string& name) {
  try {
    const py::gil_scoped_release release;
    return locate_model(name).string();
  } catch (const InputError& error) {
    throw py::value_error(in_python_words(error.what()));
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
  module.def("locate", &locate, py::arg("name"));
  module.def("models", &models, py::arg("extra"));
  module.def("families", &unpack::supported_families);
  bind_options(module);
  bind_results(module);
  bind_model(module);
  bind_prepared(module);
  bind_experiment(module);
  bind_batch(module);
}
