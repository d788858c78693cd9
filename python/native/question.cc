// Arguments of Python as fields: the codec of the library reads them, as it does for every front
// end.
#include "unpack/question.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <limits>

#include "bind.h"
#include "unpack/error.h"
#include "unpack/prepared.h"
#include "unpack/sources.h"
#include "unpack/writers.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

// Deeper lists are nothing that a field could be.
constexpr int kDeepest = 4;

double whole_as_double(PyObject* number) {
  const double x = PyLong_AsDouble(number);
  if (x != -1.0 || !PyErr_Occurred()) return x;
  PyErr_Clear();  // hundreds of digits
  return std::numeric_limits<double>::infinity();
}

// A number of a kind of its own, such as Decimal or Fraction.
bool is_real(PyObject* value) {
  const PyNumberMethods* methods = Py_TYPE(value)->tp_as_number;
  return methods && methods->nb_float && !PyIndex_Check(value);
}

Field to_field(const std::string& name, const py::handle& value, int depth = 0) {
  Field field;
  if (value.is_none()) {
    field.value = Field::Other{"None", {}};
  } else if (PyBool_Check(value.ptr())) {
    field.value = value.ptr() == Py_True;
  } else if (PyUnicode_Check(value.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (!text) {
      PyErr_Clear();
      throw UsageError(name + " holds a lone surrogate, which is no character");
    }
    field.value = std::string(text, size);
  } else if (depth < kDeepest && py::hasattr(value, "tolist")) {  // numpy, torch
    return to_field(name, value.attr("tolist")(), depth + 1);
  } else if (PyFloat_Check(value.ptr()) || is_real(value.ptr())) {
    const double x = PyFloat_AsDouble(value.ptr());
    if (x == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    field.value = x;
  } else if (PyIndex_Check(value.ptr())) {
    const auto whole = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!whole) throw py::error_already_set();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
    if (overflow != 0) {
      field.value = whole_as_double(whole.ptr());
    } else {
      field.value = static_cast<std::int64_t>(number);
    }
  } else if (depth < kDeepest && (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()) ||
                                  PyRange_Check(value.ptr()))) {
    FieldList list;
    for (const py::handle& member : value) list.push_back(to_field(name, member, depth + 1));
    field.value = std::move(list);
  } else {
    field.value = Field::Other{std::string(py::str(py::type::of(value).attr("__name__"))), {}};
  }
  return field;
}

// `length`: of the prompt, where it is known already.
Asked read(const py::dict& given, const Model* model, std::optional<int> length) {
  Fields fields;
  for (const auto& [key, value] : given) {
    const auto name = py::cast<std::string>(key);
    fields.emplace_back(name, to_field(name, value));
  }
  Asked asked;
  const std::vector<std::string> unknown = apply_fields(fields, asked, model);
  if (!unknown.empty()) throw UsageError("there is no " + unknown.front());
  if (model && length) check_asked(asked, *model, *length);
  return asked;
}

}  // namespace

void bind_question(py::module_& module) {
  py::class_<Asked>(module, "Asked")
      .def(py::init(&read), py::arg("fields"), py::arg("model") = nullptr,
           py::arg("length") = std::nullopt)
      .def_property_readonly("method", [](const Asked& a) { return to_string(a.method); });
  module.attr("question_fields") = question_fields();
  module.attr("option_fields") = option_fields();
  module.attr("most_paths") = kMostPaths;
  // What is no part of a question is read as its fields are.
  const auto name = py::arg("name");
  const auto value = py::arg("value");
  module.def(
      "read_integer",
      [](const std::string& n, const py::handle& x, int low, int high) {
        return read_integer(n, to_field(n, x), low, high);
      },
      name, value, py::arg("low"), py::arg("high"));
  module.def(
      "read_number",
      [](const std::string& n, const py::handle& x) { return read_number(n, to_field(n, x)); },
      name, value);
  module.def(
      "read_flag",
      [](const std::string& n, const py::handle& x) { return read_flag(n, to_field(n, x)); }, name,
      value);
  module.def(
      "read_text",
      [](const std::string& n, const py::handle& x) { return read_text(n, to_field(n, x)); }, name,
      value);
  module.def(
      "read_ids",
      [](const std::string& n, const py::handle& x, int vocabulary) {
        return read_ids(n, to_field(n, x), vocabulary, std::numeric_limits<int>::max());
      },
      name, value, py::arg("vocabulary"));
  module.def("resolve_position", &resolve_position, py::arg("position"), py::arg("length"));
  py::dict defaults;
  defaults["top"] = PredictOptions().top;
  defaults["max_tokens"] = SamplingOptions().max_tokens;
  defaults["attribute"] = kAttributedTokens;
  defaults["generate"] = SourcesOptions().generate;
  module.attr("defaults") = defaults;
}

}  // namespace unpack::python
