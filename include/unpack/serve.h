// The web page and its JSON API, on one local port.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "unpack/model.h"

namespace unpack {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 7860;                  // 0: any free one
  std::vector<std::string> models;  // the only ones that can be asked for; the first is the default
                                    // and is loaded at once
  std::vector<std::string> allowed_hosts;  // names, besides localhost, `host` and plain addresses,
                                           // that a Host header may carry
  LoadOptions load;

  std::size_t max_body = std::size_t{1} << 20;  // bytes of a request
  int max_tokens = 512;                         // of a prompt
  std::size_t max_paths = 5000;                 // of an answer
  std::size_t max_waiting = 16;      // requests that wait for a model; one more is answered 429
  std::size_t max_connections = 64;  // answered at the same time
  std::chrono::milliseconds time_limit{60'000};    // of a request, the wait included
  std::size_t cache_bytes = std::size_t{1} << 30;  // prepared prompts that are kept, with what
                                                   // questions left for the next one
  std::chrono::milliseconds request_deadline{10'000};  // to send a whole request
  std::string token;  // not empty: every request but /health carries it, as a bearer token, or as
                      // the page's own ?token=

  void check() const;  // throws UsageError
};

class WebServer {
 public:
  // Loads the first model and binds the port. Throws InputError where either fails.
  explicit WebServer(const ServeOptions& options);
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  int port() const;
  std::string url() const;
  void run();  // returns after stop()
  void
  stop();  // from any thread (not from a signal handler): cancels what runs and lets run() return

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unpack
