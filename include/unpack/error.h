// What the library throws. It never prints and never aborts.
#pragma once

#include <stdexcept>
#include <string>

namespace unpack {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user's input is bad: a file, a prompt, a node or position that is not there. Exit status 1.
class InputError : public Error {
 public:
  using Error::Error;
};

// An option has a value of the wrong kind or out of its range. Exit status 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A fault of ours. Exit status 3.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The work was stopped through RunContext::stop.
class Cancelled : public Error {
 public:
  Cancelled() : Error("cancelled") {}
};

}  // namespace unpack
