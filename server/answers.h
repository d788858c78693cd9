// What the server says: a body, or an error as one line of JSON with its status.
#pragma once

#include <httplib.h>

#include <exception>
#include <string>

namespace unpack::server {

inline constexpr const char* kJson = "application/json";

void answer_with(httplib::Response& response, std::string content, const std::string& type);
void answer_error(httplib::Response& response, int status, const std::string& message);
void answer_exception(httplib::Response& response, const std::exception_ptr& error);

}  // namespace unpack::server
