#pragma once

#include <stdexcept>
#include <string>

namespace unpack::server {

// An answer other than 200, 400 and 500, which the library's own exceptions stand for.
struct HttpError : std::runtime_error {
  HttpError(int code, const std::string& message) : std::runtime_error(message), status(code) {}
  int status;
};

}  // namespace unpack::server
