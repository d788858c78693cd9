#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "unpack/models.h"

namespace unpack::cli {
namespace {

std::string size_text(std::uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1024) return fmt::format("{:.1f} MiB", mib);
  return fmt::format("{:.1f} GiB", mib / 1024);
}

// Whether the weights, as the program works with them, fit what is free now.
std::string fits(const FoundModel& model, std::uint64_t available) {
  if (available == 0) return fmt::format("needs {}", size_text(model.memory));
  return model.memory <= available
             ? "fits"
             : fmt::format("needs {}, {} free", size_text(model.memory), size_text(available));
}

void run_models(const std::vector<std::string>& paths) {
  const std::vector<FoundModel> found = list_models({paths.begin(), paths.end()});
  std::size_t width = 0, kind = 9;
  for (const FoundModel& model : found) {
    width = std::max(width, model.name.size());
    if (model.problem.empty()) kind = std::max(kind, model.quantisation.size());
  }
  const std::uint64_t available = free_memory();
  std::string text;
  for (const FoundModel& model : found) {
    const std::string family = model.family.empty() ? "?" : model.family;
    if (!model.problem.empty()) {
      text += fmt::format("{:<{}}  {:<8} {:<9} cannot be used: {}\n", model.name, width,
                          model.origin, family, model.problem);
      continue;
    }
    text += fmt::format("{:<{}}  {:<8} {:<9} {:<{}} {:>9} {:>8} ctx  {}  {}\n", model.name, width,
                        model.origin, family, model.quantisation, kind, size_text(model.bytes),
                        model.context, fits(model, available), model.folder.string());
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
