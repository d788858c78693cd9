// numpy arrays over memory that the engine owns.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <utility>
#include <vector>

#include "unpack/prepared.h"

namespace unpack::python {

namespace py = pybind11;

inline py::array read_only(py::array array) {
  array.attr("flags").attr("writeable") = false;
  return array;
}

// A view of `values`, which live as long as `owner`.
inline py::array view(const std::vector<double>& values, const py::handle& owner) {
  return read_only(
      py::array_t<double>(static_cast<py::ssize_t>(values.size()), values.data(), owner));
}

// The array takes the values over.
inline py::array take(CachedArray&& array) {
  auto values = std::make_unique<std::vector<double>>(std::move(array.values));
  const double* data = values->data();
  const py::capsule owner(values.release(),
                          [](void* p) { delete static_cast<std::vector<double>*>(p); });
  return py::array_t<double>(std::vector<py::ssize_t>(array.shape.begin(), array.shape.end()), data,
                             owner);
}

// Rows of one length as [rows, length].
inline py::array stack(const std::vector<std::vector<double>>& rows, std::size_t length) {
  py::array_t<double> out({rows.size(), length});
  auto to = out.mutable_unchecked<2>();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < length; ++i)
      to(static_cast<py::ssize_t>(r), static_cast<py::ssize_t>(i)) = rows[r].at(i);
  }
  return read_only(std::move(out));
}

}  // namespace unpack::python
