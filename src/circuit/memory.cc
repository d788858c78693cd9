#include "circuit/memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>

#include "base/json_reader.h"
#include "report/json.h"
#include "report/line_log.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack {

std::vector<double> circuit::recalled(CircuitMemory* memory, const std::string& name,
                                      const std::function<std::vector<double>()>& compute) {
  if (memory == nullptr) return compute();
  if (const std::vector<double>* known = memory->find(name)) return *known;
  std::vector<double> values = compute();
  memory->keep(name, values);
  return values;
}

std::string circuit::short_name(const char* bytes, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < size; ++i)
    hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

std::string circuit_search(const Model& model, const Task& task, const CircuitOptions& o) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {}\n", model.program().version,
                                 model.program().device, model.info().fingerprint,
                                 model.info().dtype, to_string(o.method), o.contrast, o.steps,
                                 to_string(o.ablation), o.nodes, o.positions, o.patched);
  text += report::compact(report::options_json(o.options));
  for (const TaskPrompt& p : task.prompts)
    text += fmt::format("\n{} {} {} {}", fmt::join(p.ids, ","), fmt::join(p.counterfactual, ","),
                        fmt::join(p.target, ","),
                        p.versus ? fmt::format("{}", fmt::join(*p.versus, ",")) : "all");
  return text;
}

CircuitMemory::CircuitMemory(std::filesystem::path file, const std::string& search)
    : file_(std::move(file)), search_(circuit::short_name(search.data(), search.size())) {
  std::error_code ignored;
  if (!std::filesystem::exists(file_, ignored)) return;
  bool ours = false;
  report::read_sealed(file_, [&](std::string_view line) {
    JsonValue object;
    try {
      object = read_json(line, file_.string(), base::kSmallJson);
    } catch (const InputError&) {
      return;  // a line that is not ours: what it held is found again
    }
    if (!object.is_object()) return;
    if (const auto name = object.find("search");
        name != object.end() && name->is_string() && name->get<std::string>() == search_)
      ours = true;
    if (!ours || !object.contains("name") || !object["name"].is_string() ||
        !object.contains("values") || !object["values"].is_array())
      return;
    std::vector<double> values;
    for (const auto& x : object["values"]) values.push_back(x.is_number() ? x.get<double>() : 0.0);
    known_[object["name"].get<std::string>()] = std::move(values);
  });
  if (!ours) std::filesystem::remove(file_, ignored);
}

CircuitMemory::~CircuitMemory() = default;

const std::vector<double>* CircuitMemory::find(const std::string& name) const {
  const auto found = known_.find(name);
  return found != known_.end() ? &found->second : nullptr;
}

void CircuitMemory::keep(const std::string& name, const std::vector<double>& values) {
  if (log_ == nullptr) {
    std::error_code error;
    std::filesystem::create_directories(file_.parent_path(), error);
    if (error)
      throw InputError(fmt::format("cannot make the folder {}: {}", file_.parent_path().string(),
                                   error.message()));
    const bool begun = std::filesystem::exists(file_, error);
    log_ = std::make_unique<report::LineLog>(file_, [](std::string_view) {});
    if (!begun) log_->append(report::seal(OrderedJson{{"search", search_}}) + "\n");
  }
  log_->append(report::seal(OrderedJson{{"name", name}, {"values", values}}) + "\n");
  known_[name] = values;
}

void CircuitMemory::forget() {
  log_.reset();
  known_.clear();
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
  // A folder that holds nothing else was made for it.
  if (std::filesystem::is_empty(file_.parent_path(), ignored) && !ignored)
    std::filesystem::remove(file_.parent_path(), ignored);
}

}  // namespace unpack
