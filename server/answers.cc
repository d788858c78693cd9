#include "answers.h"

#include <fmt/format.h>

#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "http_error.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack::server {

namespace {

std::string error_body(const std::string& message) {
  return JsonValue{{"error", Error(message).what()}}.dump(-1, ' ', false,
                                                          JsonValue::error_handler_t::replace);
}

}  // namespace

void answer_error(httplib::Response& response, int status, const std::string& message) {
  constexpr int kTooMany = 429;
  response.status = status;
  if (status == kTooMany) response.set_header("Retry-After", "1");
  response.set_content(error_body(message), kJson);
}

// A body from a provider of known length goes out as it is. Given whole, httplib would pack it with
// Brotli's slowest setting: a second for an answer that took twenty milliseconds to find, and
// nothing is gained on a loopback connection.
void answer_with(httplib::Response& response, std::string content, const std::string& type) {
  response.status = 200;
  const auto body = std::make_shared<const std::string>(std::move(content));
  response.set_content_provider(
      body->size(), type, [body](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        return sink.write(body->data() + offset, length);
      });
}

void answer_exception(httplib::Response& response, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& e) {
    answer_error(response, e.status, e.what());
  } catch (const InputError& e) {
    answer_error(response, 400, e.what());
  } catch (const UsageError& e) {
    answer_error(response, 400, e.what());
  } catch (const Cancelled&) {
    answer_error(response, 503, "the request was cancelled");
  } catch (const std::bad_alloc&) {
    answer_error(response, 503, "not enough memory for this request; try a shorter prompt");
  } catch (const std::system_error& e) {
    answer_error(response, 503, e.what());  // the system said no
  } catch (const std::exception& e) {
    answer_error(response, 500, fmt::format("a fault of ours: {}", e.what()));
  } catch (...) {
    answer_error(response, 500, "a fault of ours");
  }
}

}  // namespace unpack::server
