#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <optional>
#include <system_error>
#include <thread>

#include "answers.h"
#include "api.h"
#include "connection.h"
#include "guard.h"
#include "http_error.h"
#include "http_tasks.h"
#include "metrics.h"
#include "model_worker.h"
#include "page.h"
#include "prepared_cache.h"
#include "request_fields.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/serve.h"

namespace unpack {

using json = JsonValue;
using server::answer_error;
using server::answer_exception;
using server::answer_with;
using server::HttpError;
using server::kJson;

namespace {

constexpr auto kTick = std::chrono::milliseconds(
    20);  // how often a waiting request looks whether its client is still there
constexpr int kBacklog = 512;
constexpr auto kToAnswer = std::chrono::milliseconds(60'000);  // for a client to take its answer
constexpr std::size_t kLongestTicket = 64;

// A name for the question, to ask how far it is; one that is too long counts as none.
std::string ticket_of(const httplib::Request& request) {
  std::string ticket = request.get_header_value("X-Unpack-Ticket");
  return ticket.size() <= kLongestTicket ? ticket : std::string();
}

}  // namespace

void ServeOptions::check() const {
  if (host.empty()) throw UsageError("the host to listen on is empty; 127.0.0.1 is the default");
  if (port < 0 || port > 65535)
    throw UsageError(fmt::format("port {} is outside 0 to 65535", port));
  if (models.empty()) throw UsageError("no model to serve; name at least one");
  if (max_tokens < 1 || max_paths < 1 || max_body < 1 || max_waiting < 1 || max_connections < 1 ||
      time_limit.count() < 1) {
    throw UsageError("every limit of the server must be at least 1");
  }
  constexpr std::size_t kMostConnections = 1024;
  if (max_connections > kMostConnections)
    throw UsageError(
        fmt::format("max_connections takes {} at most, not {}", kMostConnections, max_connections));
  constexpr std::size_t kShortestToken = 8;
  const bool plain = std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~';
  });
  if (!token.empty() && (token.size() < kShortestToken || !plain))
    throw UsageError(
        fmt::format("token takes {} or more letters, digits and -_.~", kShortestToken));
}

struct WebServer::Impl {
  explicit Impl(const ServeOptions& served)
      : options(served),
        guard(hosts(served)),
        cache(served.cache_bytes),
        api(cache, {served.max_tokens, served.max_paths}) {
    for (const std::string& name : options.models) {
      if (find(name)) continue;
      workers.push_back(std::make_unique<server::ModelWorker>(
          name, options.load, options.max_waiting, options.cache_bytes / 4));
    }
    add_routes();
    bind();
    load_first();
    watch.emplace(bound, options.request_deadline, kToAnswer);
  }

  static std::vector<std::string> hosts(const ServeOptions& options) {
    std::vector<std::string> names = options.allowed_hosts;
    names.push_back(options.host);
    return names;
  }

  server::ModelWorker* find(const std::string& name) const {
    for (const auto& worker : workers) {
      if (worker->name() == name) return worker.get();
    }
    return nullptr;
  }

  void load_first() {
    const std::shared_ptr<server::Job> job =
        workers.front()->submit([](const Model&, const RunContext&) { return std::string(); });
    while (!job->wait_for(std::chrono::seconds(1))) {
    }
    job->take();
  }

  void bind() {
    http.set_tcp_nodelay(true);
    // Not the HTTP library's own options: they let a second server share the port, and requests go
    // astray.
    http.set_socket_options([this](auto socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      listening = socket;
    });
    // One request per connection: what a refused request left unread can then never be taken for
    // the next one, and no idle connection holds a thread.
    http.set_keep_alive_max_count(1);
    http.set_keep_alive_timeout(2);
    http.set_read_timeout(5);
    http.set_write_timeout(10);
    http.set_payload_max_length(options.max_body);
    // Started now: whoever reads the address can be answered.
    tasks = std::make_unique<server::HttpTasks>(options.max_connections);
    http.new_task_queue = [this] {
      return tasks ? tasks.release() : new server::HttpTasks(options.max_connections);
    };
    bound = options.port == 0                               ? http.bind_to_any_port(options.host)
            : http.bind_to_port(options.host, options.port) ? options.port
                                                            : -1;
    if (bound < 0) {
      throw InputError(
          fmt::format("cannot listen on {} port {}: it is taken or not ours; choose another port, "
                      "or 0 for any free one",
                      options.host, options.port));
    }
    ::listen(listening,
             kBacklog);  // the HTTP library's own queue of 5 would drop connections of a burst
  }

  void add_routes();
  void read_and_answer(const std::string& path, const httplib::Request& request,
                       httplib::Response& response, const httplib::ContentReader& reader);
  std::string read_body(const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& reader) const;
  void check_client(const httplib::Request& request) const;
  std::string models_body() const;
  std::string metrics_body() const;
  bool token_fits(const httplib::Request& request) const;
  std::string queue_body(const std::string& ticket) const;
  std::string wait(server::ModelWorker& worker, const httplib::Request& request,
                   const server::Work& work);

  const ServeOptions options;
  const server::Guard guard;
  server::PreparedCache cache;
  const server::Api api;
  server::Metrics metrics;
  std::vector<std::unique_ptr<server::ModelWorker>> workers;
  httplib::Server http;
  int listening = -1;
  int bound = -1;
  std::atomic<bool> stopping = false;
  std::atomic<bool> entered = false;
  std::optional<server::ConnectionWatch> watch;
  std::unique_ptr<server::HttpTasks> tasks;  // until the HTTP library takes them
};

void WebServer::Impl::check_client(const httplib::Request& request) const {
  const std::string host = request.get_header_value("Host");
  if (request.get_header_value_count("Host") != 1 || !guard.host_allowed(host)) {
    throw HttpError(403,
                    "this Host is not served here; use localhost or the address itself, or start "
                    "with --allow-host NAME");
  }
  if (!guard.origin_allowed(request.get_header_value("Origin"), host))
    throw HttpError(403, "requests from other sites' pages are not answered");
  if (!token_fits(request))
    throw HttpError(401, "this server asks for a token: send Authorization: Bearer TOKEN");
}

bool WebServer::Impl::token_fits(const httplib::Request& request) const {
  if (options.token.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  std::string given = request.get_header_value("Authorization");
  // A browser cannot send a header with the address of the page.
  given =
      given.starts_with(kBearer) ? given.substr(kBearer.size()) : request.get_param_value("token");
  // As long for a good beginning as for a bad one.
  unsigned difference = given.size() == options.token.size() ? 0 : 1;
  for (std::size_t i = 0; i < options.token.size(); ++i)
    difference |= static_cast<unsigned char>(options.token[i]) ^
                  (i < given.size() ? static_cast<unsigned char>(given[i]) : 0xFFu);
  return difference == 0;
}

std::string WebServer::Impl::read_body(const httplib::Request& request, httplib::Response& response,
                                       const httplib::ContentReader& reader) const {
  const std::string type = request.get_header_value("Content-Type");
  if (type != kJson && type.rfind("application/json;", 0) != 0)
    throw HttpError(415, "send the request as JSON, with Content-Type: application/json");
  std::string body;
  bool fits = true;
  const bool read = reader([&](const char* data, std::size_t size) {
    fits = body.size() + size <= options.max_body;
    if (fits) body.append(data, size);
    return fits;
  });
  if (!fits || response.status == 413)
    throw HttpError(
        413, fmt::format("the request is larger than the limit of {} bytes", options.max_body));
  if (!read) throw HttpError(400, "the request's body could not be read, or came too slowly");
  return body;
}

std::string WebServer::Impl::wait(server::ModelWorker& worker, const httplib::Request& request,
                                  const server::Work& work) {
  const auto deadline = std::chrono::steady_clock::now() + options.time_limit;
  const std::shared_ptr<server::Job> job = worker.submit(work, ticket_of(request));
  if (!job)
    throw HttpError(429, "too many requests are waiting for this model; try again in a moment");
  std::optional<server::ClientConnection> client;
  while (!job->wait_for(kTick)) {
    if (!client) client.emplace(request.remote_addr, request.remote_port, request.local_port);
    const bool late = std::chrono::steady_clock::now() > deadline;
    if (!stopping && !late && !client->closed()) continue;
    job->cancel();
    if (stopping) throw HttpError(503, "the server is shutting down");
    if (late)
      throw HttpError(504, fmt::format("the request took longer than the limit of {} ms; try a "
                                       "shorter prompt or fewer paths",
                                       options.time_limit.count()));
    throw HttpError(503, "the client has gone");
  }
  return job->take();
}

std::string WebServer::Impl::models_body() const {
  json list = json::array();
  for (const auto& worker : workers) {
    json entry = {
        {"name", worker->name()}, {"default", worker == workers.front()}, {"info", nullptr}};
    if (const auto model = worker->loaded()) entry["info"] = server::describe(*model);
    list.push_back(std::move(entry));
  }
  return json{{"models", list},
              {"options", server::method_options(kDefaultPreset)},
              {"presets", server::preset_list()},
              {"endpoints", server::Api::names()},
              {"limits",
               {{"max_tokens", options.max_tokens},
                {"max_paths", options.max_paths},
                {"max_body", options.max_body},
                {"time_limit_ms", options.time_limit.count()}}}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string WebServer::Impl::metrics_body() const {
  double waiting = 0, loaded = 0;
  for (const auto& worker : workers) {
    waiting += worker->waiting();
    loaded += worker->loaded() ? 1 : 0;
  }
  return metrics.text({{"unpack_waiting", waiting},
                       {"unpack_models_loaded", loaded},
                       {"unpack_cache_bytes", static_cast<double>(cache.bytes())},
                       {"unpack_cache_limit_bytes", static_cast<double>(options.cache_bytes)},
                       {"unpack_cache_prompts", static_cast<double>(cache.count())},
                       {"unpack_cache_hits", static_cast<double>(cache.hits())},
                       {"unpack_cache_misses", static_cast<double>(cache.misses())}});
}

std::string WebServer::Impl::queue_body(const std::string& ticket) const {
  if (ticket.empty() || ticket.size() > kLongestTicket)
    throw HttpError(400, "ask with ?ticket=..., the X-Unpack-Ticket of the question");
  for (const auto& worker : workers) {
    const std::optional<server::Place> place = worker->place(ticket);
    if (!place) continue;
    return json{{"state", place->running ? "running" : "waiting"},
                {"before", place->before},
                {"what", place->what},
                {"done", place->done},
                {"total", place->total}}
        .dump();
  }
  return json{{"state", "unknown"}, {"before", 0}, {"what", ""}, {"done", 0}, {"total", 0}}.dump();
}

void WebServer::Impl::read_and_answer(const std::string& name, const httplib::Request& request,
                                      httplib::Response& response,
                                      const httplib::ContentReader& reader) {
  try {
    check_client(request);
    const std::string text = read_body(request, response, reader);
    const server::ConnectionWatch::Served served(*watch, request.remote_addr, request.remote_port);
    const Fields body = read_fields(text, "the request");
    server::RequestFields fields(body);
    const std::string wanted = fields.text("model").value_or(workers.front()->name());
    server::ModelWorker* worker = find(wanted);
    if (!worker)
      throw HttpError(
          404, fmt::format("model {} is not served here; GET /api/models lists those that are",
                           shown(text_field(wanted))));
    if (!worker->loaded())
      wait(*worker, request, [](const Model&, const RunContext&) { return std::string(); });
    const std::shared_ptr<const Model> model = worker->loaded();
    server::Answer answer =
        api.ask(name, worker->name(), *model, body);  // reads the request; the work comes now
    std::string content =
        answer.quick ? answer.work(*model, {}) : wait(*worker, request, answer.work);
    cache.settle();
    const server::ClientConnection client(request.remote_addr, request.remote_port,
                                          request.local_port);
    if (client.half_closed())
      client.send(
          fmt::format("HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
                      "Content-Security-Policy: {}\r\nConnection: close\r\n\r\n{}",
                      answer.type, content.size(), server::page_policy(), content));
    answer_with(response, std::move(content), answer.type);
  } catch (...) {
    answer_exception(response, std::current_exception());
  }
}

void WebServer::Impl::add_routes() {
  http.set_default_headers({{"Content-Security-Policy", server::page_policy()},
                            {"Cross-Origin-Resource-Policy", "same-origin"},
                            {"Cross-Origin-Opener-Policy", "same-origin"},
                            {"X-Content-Type-Options", "nosniff"},
                            {"X-Frame-Options", "DENY"},
                            {"Referrer-Policy", "no-referrer"},
                            {"Cache-Control", "no-store"}});
  const auto guarded = [this](auto make) {
    return [this, make](const httplib::Request& request, httplib::Response& response) {
      try {
        check_client(request);
        make(response);
      } catch (...) {
        answer_exception(response, std::current_exception());
      }
    };
  };
  http.Get("/", [this](const httplib::Request& request, httplib::Response& response) {
    const auto page = [&](int status) {
      answer_with(response, std::string(server::page_html()), "text/html; charset=utf-8");
      response.status = status;
    };
    try {
      check_client(request);
      page(200);
    } catch (const HttpError& e) {
      // The page holds no secret, and it is what asks a person for the token.
      const bool person = request.get_header_value("Accept").find("text/html") != std::string::npos;
      if (e.status == 401 && person) return page(401);
      answer_exception(response, std::current_exception());
    } catch (...) {
      answer_exception(response, std::current_exception());
    }
  });
  http.Get("/api/queue", [this](const httplib::Request& request, httplib::Response& response) {
    try {
      check_client(request);
      answer_with(response, queue_body(request.get_param_value("ticket")), kJson);
    } catch (...) {
      answer_exception(response, std::current_exception());
    }
  });
  http.Get("/api/models", guarded([this](httplib::Response& response) {
             answer_with(response, models_body(), kJson);
           }));
  http.Get("/metrics", guarded([this](httplib::Response& response) {
             answer_with(response, metrics_body(), "text/plain; version=0.0.4; charset=utf-8");
           }));
  // For those who watch over it: no token, no secrets.
  http.Get("/health", [](const httplib::Request&, httplib::Response& response) {
    answer_with(response, json{{"status", "ok"}}.dump(), kJson);
  });
  http.set_logger([this](const httplib::Request&, const httplib::Response& response) {
    metrics.count(response.status);
  });
  for (const std::string& name : server::Api::names()) {
    const auto handler = [this, name](const httplib::Request& request, httplib::Response& response,
                                      const httplib::ContentReader& reader) {
      read_and_answer(name, request, response, reader);
    };
    http.Post("/api/" + name, httplib::Server::HandlerWithContentReader(handler));
  }
  http.set_pre_routing_handler([](const httplib::Request&, httplib::Response& response) {
    if (!server::TaskThreads::again()) return httplib::Server::HandlerResponse::Unhandled;
    answer_exception(response, std::make_exception_ptr(std::bad_alloc()));
    return httplib::Server::HandlerResponse::Handled;
  });
  http.set_exception_handler([](const httplib::Request&, httplib::Response& response,
                                std::exception_ptr error) { answer_exception(response, error); });
  http.set_error_handler(httplib::Server::HandlerWithResponse([](const httplib::Request& request,
                                                                 httplib::Response& response) {
    if (response.body.empty() && !response.content_provider_) {
      const std::string name = request.path.rfind("/api/", 0) == 0 ? request.path.substr(5) : "";
      const auto& names = server::Api::names();
      const bool known = request.path == "/" || request.path == "/health" ||
                         request.path == "/metrics" || name == "models" || name == "queue" ||
                         std::find(names.begin(), names.end(), name) != names.end();
      if (response.status == 404 && known) {
        answer_error(response, 405,
                     name.empty() || name == "models" || name == "queue"
                         ? "use GET here"
                         : "use POST with a JSON body here");
      } else {
        answer_error(response, response.status,
                     response.status == 404 ? "there is nothing here; see / and /api/models"
                                            : "the request was not understood");
      }
    }
    return httplib::Server::HandlerResponse::Handled;
  }));
}

WebServer::WebServer(const ServeOptions& options) {
  options.check();
  impl_ = std::make_unique<Impl>(options);
}

WebServer::~WebServer() = default;

int WebServer::port() const { return impl_->bound; }

std::string WebServer::url() const {
  const std::string& host = impl_->options.host;
  const bool any = host == "0.0.0.0" || host == "::";
  return fmt::format("http://{}:{}/",
                     any                                   ? "127.0.0.1"
                     : host.find(':') == std::string::npos ? host
                                                           : "[" + host + "]",
                     impl_->bound);
}

void WebServer::run() {
  // Also when it throws: stop() waits for one or the other.
  struct Entered {
    std::atomic<bool>& flag;
    explicit Entered(std::atomic<bool>& f) : flag(f) { flag = true; }
    ~Entered() { flag = false; }
  } const entered(impl_->entered);
  if (!impl_->stopping && !impl_->http.listen_after_bind() && !impl_->stopping)
    throw InternalError("the server stopped listening");
}

void WebServer::stop() {
  if (impl_->stopping.exchange(true)) return;
  for (const auto& worker : impl_->workers) worker->cancel_all();
  // The HTTP library forgets a stop that comes before it has begun to listen.
  while (impl_->entered && !impl_->http.is_running())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  impl_->http.stop();
}

}  // namespace unpack
