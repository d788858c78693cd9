#include "experiments/compiled/save.h"

#include <fmt/format.h>

#include "unpack/json.h"
#include "unpack/report.h"

namespace unpack::experiments::compiled {

void save_with_circuit(const Program& program, const CompiledModel& model, const Settings& settings,
                       const std::filesystem::path& folder) {
  using Json = OrderedJson;
  Json prompts = Json::array(), components = Json::array(), edges = Json::array(),
       neutral = Json::array();
  for (const Prompt& p : program.prompts)
    prompts.push_back({{"ids", p.ids},
                       {"counterfactual_ids", p.counterfactual},
                       {"target_id", p.target},
                       {"versus_id", p.contrast},
                       {"tokens", p.tokens}});
  const auto role = [](Role r) {
    return r == Role::live ? "live" : (r == Role::dead ? "dead" : "decoy");
  };
  for (std::size_t l = 0; l < program.layers.size(); ++l) {
    const Layer& layer = program.layers[l];
    for (std::size_t h = 0; h < layer.heads.size(); ++h)
      components.push_back({{"component", fmt::format("A{}.H{}", l, h)},
                            {"role", role(layer.heads[h].role)},
                            {"name", layer.heads[h].name}});
    components.push_back({{"component", fmt::format("MLP{}", l)},
                          {"role", role(layer.mlp.role)},
                          {"name", layer.mlp.name}});
  }
  for (const EdgeName& edge : program.edges()) {
    const Truth truth = program.truth(edge);
    if (truth == Truth::no) continue;
    const Json row = {{"writer", edge.writer},
                      {"reader", edge.reader},
                      {"branch", edge.branch == Branch::none || edge.branch == Branch::mlp
                                     ? Json(nullptr)
                                     : Json(unpack::to_string(edge.branch))}};
    (truth == Truth::yes ? edges : neutral).push_back(row);
  }
  model.save(folder);
  const Json all = {{"program", program.name},
                    {"what", program.what},
                    {"format", to_string(settings.format)},
                    {"sharpness", settings.sharpness},
                    {"noise", settings.noise},
                    {"seed", settings.seed},
                    {"prompts", prompts},
                    {"components", components},
                    {"true_edges", edges},
                    {"constant_edges", neutral}};
  write_file(folder / "circuit.json", all.dump(1) + "\n");
}

}  // namespace unpack::experiments::compiled
