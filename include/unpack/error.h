// What the library throws. It never prints and never aborts.
#pragma once

#include <stdexcept>
#include <string>

namespace unpack {

// The message is one line of UTF-8, whatever is quoted in it: control characters and foreign bytes
// are escaped, and what is very long is shortened.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
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

// The same for a value of another kind than the one that is asked for: a text for a number.
class KindError : public UsageError {
 public:
  using UsageError::UsageError;
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
