// JSON of what is measured beside traces: interventions and the bench.
#include <nlohmann/json.hpp>

#include "report/json.h"
#include "unpack/bench.h"
#include "unpack/intervene.h"

namespace unpack {

using Json = nlohmann::ordered_json;

std::string to_json(const InterventionResult& r) {
  const auto reading = [](const InterventionReading& x) {
    Json predictions = Json::array();
    for (const Prediction& p : x.predictions)
      predictions.push_back({{"id", p.id}, {"text", p.text}, {"probability", p.probability}});
    return Json{{"nll", x.nll},
                {"target", x.target},
                {"probability", x.probability},
                {"predictions", predictions}};
  };
  Json change = Json::object();
  if (r.intervention.cut) {
    change["cut"] = *r.intervention.cut;
    change["channel"] = to_string(r.intervention.channel);
  }
  if (!r.intervention.ablate.empty()) {
    change["components"] = r.intervention.ablate;
    change["ablate"] = to_string(r.intervention.ablation);
    change["scale"] = r.intervention.scale;
  }
  if (!r.intervention.edges.empty()) change["edges"] = r.intervention.edges;
  if (!r.intervention.patch_from.empty()) change["patch_from"] = r.intervention.patch_from;
  if (!r.intervention.zero.empty()) change["zero"] = r.intervention.zero;
  const Json target = {
      {"position", r.target.position}, {"ids", r.target.ids}, {"text", r.target.text}};
  return report::compact({{"model", r.model.name},
                          {"target", target},
                          {"intervention", change},
                          {"clean", reading(r.clean)},
                          {"cut", reading(r.cut)}});
}

namespace {

Json row_json(const BenchRow& row) {
  return {{"name", row.name.substr(row.name.find_first_not_of(' '))},
          {"seconds", row.seconds},
          {"gflop", row.gflop},
          {"gbyte", row.gbyte},
          {"bound", row.bound},
          {"note", row.note}};
}

Json length_json(const BenchResult::Length& length) {
  Json rows = Json::array();
  for (const BenchRow& row : length.rows) rows.push_back(row_json(row));
  Json entry = {{"tokens", length.tokens},
                {"peak_memory_mib", length.peak_memory_mib},
                {"memory_bound_mib", length.memory_bound_mib},
                {"rows", rows}};
  for (const BenchPlan& part : length.plan)
    entry["plan"].push_back(
        {{"what", part.what}, {"way", part.way}, {"gflop", part.gflop}, {"gbyte", part.gbyte}});
  if (length.device_peak_mib > 0) entry["device_peak_mib"] = length.device_peak_mib;
  if (length.device_counted_mib > 0) entry["device_counted_mib"] = length.device_counted_mib;
  if (length.streamed) {
    const BenchStreamed& s = *length.streamed;
    entry["streamed"] = {{"layers_kept", s.layers_kept},
                         {"seconds", s.seconds},
                         {"resident_seconds", s.resident_seconds},
                         {"uploaded_gbytes", s.uploaded_gbytes},
                         {"upload_seconds", s.upload_seconds}};
  }
  return entry;
}

}  // namespace

std::string to_json(const BenchResult& r) {
  Json json;
  json["program"] = {{"version", r.program.version},
                     {"device", r.program.device},
                     {"threads", r.program.threads},
                     {"kernels", r.kernels}};
  json["model"] = {{"name", r.model.name},       {"family", r.model.family},
                   {"layers", r.model.layers},   {"heads", r.model.heads},
                   {"d_model", r.model.d_model}, {"dtype", r.model.dtype}};
  json["gemm_gflops"] = r.gemm_gflops;
  json["read_gbytes"] = r.read_gbytes;
  json["weights_mib"] = r.weights_mib;
  json["base_memory_mib"] = r.base_memory_mib;
  json["peak_memory_mib"] = r.peak_memory_mib;
  if (r.device_held_mib > 0) json["device_held_mib"] = r.device_held_mib;
  json["lengths"] = Json::array();
  for (const auto& length : r.lengths) json["lengths"].push_back(length_json(length));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace unpack
