// JSON of what is measured beside traces: interventions and the bench.

#include "report/json.h"
#include "unpack/bench.h"
#include "unpack/intervene.h"
#include "unpack/json.h"

namespace unpack {

using Json = OrderedJson;

namespace {

Json reading_json(const InterventionReading& x) {
  Json predictions = Json::array();
  for (const Prediction& p : x.predictions)
    predictions.push_back({{"id", p.id}, {"text", p.text}, {"probability", p.probability}});
  return {{"nll", x.nll},
          {"target", x.target},
          {"probability", x.probability},
          {"predictions", predictions}};
}

Json changed_target(const TargetInfo& target) {
  return {{"position", target.position}, {"ids", target.ids}, {"text", target.text}};
}

}  // namespace

std::string to_json(const NodesProof& p) {
  const auto number = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
  return report::compact({{"model", p.model.name},
                          {"target", changed_target(p.target)},
                          {"components", p.components},
                          {"ablate", to_string(p.ablation)},
                          {"clean", reading_json(p.clean)},
                          {"without", reading_json(p.without)},
                          {"only", reading_json(p.only)},
                          {"none", reading_json(p.none)},
                          {"faithfulness", number(p.faithfulness)},
                          {"necessity", number(p.necessity)}});
}

std::string to_json(const InterventionResult& r) {
  Json change = Json::object();
  if (r.intervention.cut) {
    change["cut"] = *r.intervention.cut;
    change["channel"] = to_string(r.intervention.channel);
  }
  if (!r.intervention.ablate.empty() || r.intervention.keep) {
    change["components"] = r.intervention.ablate;
    if (r.intervention.keep) change["keep"] = true;
    change["ablate"] = to_string(r.intervention.ablation);
    change["scale"] = r.intervention.scale;
  }
  if (!r.intervention.edges.empty()) change["edges"] = r.intervention.edges;
  if (!r.intervention.patch_from.empty()) change["patch_from"] = r.intervention.patch_from;
  if (!r.intervention.zero.empty()) change["zero"] = r.intervention.zero;
  return report::compact({{"model", r.model.name},
                          {"target", changed_target(r.target)},
                          {"intervention", change},
                          {"clean", reading_json(r.clean)},
                          {"cut", reading_json(r.cut)}});
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
  json["program"] = report::program_json(r.program);
  json["program"]["kernels"] = r.kernels;
  json["model"] = report::model_json(r.model);
  json["model"].erase("fingerprint");  // of random weights as a rule
  json["gemm_gflops"] = r.gemm_gflops;
  json["read_gbytes"] = r.read_gbytes;
  json["weights_mib"] = r.weights_mib;
  json["base_memory_mib"] = r.base_memory_mib;
  json["peak_memory_mib"] = r.peak_memory_mib;
  if (r.device_held_mib > 0) json["device_held_mib"] = r.device_held_mib;
  if (r.device_weights_mib > 0) json["device_weights_mib"] = r.device_weights_mib;
  json["lengths"] = Json::array();
  for (const auto& length : r.lengths) json["lengths"].push_back(length_json(length));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace unpack
