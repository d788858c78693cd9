#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stop_token>

#include "allocator.h"
#include "arguments.h"
#include "commands.h"
#include "unpack/error.h"
#include "unpack/models.h"
#include "unpack/serve.h"

namespace unpack::cli {
namespace {

constexpr int kLongestTime = 24 * 3600;  // seconds
constexpr int kLargestCache = 1 << 20;   // MB

struct ServeArguments {
  ModelArguments model;
  ServeOptions options;
  std::vector<std::string> more_models;
  int time_limit = 60;
  int cache_mb = 1024;
};

// The model asked for first, then those named besides, then everything usable that is bundled or
// cached.
std::vector<std::string> served_models(const ServeArguments& args) {
  std::vector<std::string> names = {args.model.model};
  names.insert(names.end(), args.more_models.begin(), args.more_models.end());
  for (const FoundModel& found : list_models({})) {
    if (found.problem.empty()) names.push_back(found.name);
  }
  return names;
}

void run_serve(ServeArguments& args, Context& context) {
  args.options.models = served_models(args);
  args.options.load = args.model.options();
  args.options.time_limit = std::chrono::seconds(args.time_limit);
  args.options.cache_bytes = static_cast<std::size_t>(args.cache_mb) << 20;
  // A server lives long: what a question took goes back sooner than in a command that ends anyway.
  keep_freed_memory(64);
  WebServer server(args.options);
  context.listening = true;
  const std::stop_callback stop(context.stop, [&] { server.stop(); });
  const std::string line = fmt::format("The page is at {}  (Ctrl-C ends it)\n", server.url());
  std::fwrite(line.data(), 1, line.size(), stderr);
  server.run();
}

}  // namespace

void add_serve(App& app, Context& context) {
  const auto args = std::make_shared<ServeArguments>();
  ServeOptions& options = args->options;
  Command command = app.add("serve", "The web page and its JSON API",
                            "unpack serve --model pocket-llama --port 7860");
  args->model.add(command);
  command.option("--host", "ADDRESS",
                 fmt::format("Listen on (default {}: this machine only)", options.host),
                 options.host);
  command.option("--port", "N", fmt::format("Port (default {}; 0: any free one)", options.port),
                 options.port);
  command.repeated("--also", "M", "One more model to offer, besides the bundled and cached ones",
                   args->more_models);
  command.repeated("--allow-host", "NAME", "A name that browsers may reach the server by",
                   options.allowed_hosts);
  command.option("--max-tokens", "N",
                 fmt::format("Longest prompt (default {})", options.max_tokens),
                 options.max_tokens);
  command.option(
      "--max-waiting", "N",
      fmt::format("Requests that may wait for a model (default {})", options.max_waiting),
      options.max_waiting);
  command.option("--time-limit", "SECONDS",
                 fmt::format("Of a request (default {})", args->time_limit),
                 [args](const std::string& text) {
                   args->time_limit = parse_integer("--time-limit", text, 1, kLongestTime);
                 });
  command.option("--token", "TEXT",
                 "Ask every request for this token (Authorization: Bearer TEXT, or ?token=TEXT)",
                 options.token);
  command.option("--cache", "MB",
                 fmt::format("Memory for prepared prompts (default {})", args->cache_mb),
                 [args](const std::string& text) {
                   args->cache_mb = parse_integer("--cache", text, 0, kLargestCache);
                 });
  command.run([args, &context] { run_serve(*args, context); });
}

}  // namespace unpack::cli
