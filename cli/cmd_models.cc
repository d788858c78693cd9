#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "unpack/models.h"

namespace unpack::cli {
namespace {

void run_models(const std::vector<std::string>& paths) {
  const std::vector<FoundModel> found = list_models({paths.begin(), paths.end()});
  std::size_t width = 0;
  for (const FoundModel& model : found) width = std::max(width, model.name.size());
  std::string text;
  for (const FoundModel& model : found) {
    text += fmt::format(
        "{:<{}}  {:<8} {:<9} {}\n", model.name, width, model.origin,
        model.family.empty() ? "?" : model.family,
        model.problem.empty() ? model.folder.string() : "cannot be used: " + model.problem);
  }
  print(text + fmt::format("{}Supported families: {}\n",
                           found.empty() ? "No model found here.\n" : "\n",
                           fmt::join(supported_families(), ", ")));
}

}  // namespace

void add_models(App& app, Context&) {
  const auto paths = std::make_shared<std::vector<std::string>>();
  Command command =
      app.add("models", "What is bundled, cached and supported", "unpack models ~/checkpoints");
  command.list("PATH", "More folders to look into", *paths);
  command.run([paths] { run_models(*paths); });
}

}  // namespace unpack::cli
