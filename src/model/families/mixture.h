// What mixtures of experts share.
#pragma once

#include "model/families/llama_like.h"

namespace unpack::model {

struct ExpertKeys {
  std::string_view experts_key;
  int experts = 8;
  int chosen = 2;
  std::string_view neurons_key = "intermediate_size";
  int neurons = 0;
  std::optional<ExpertWeights> weights = {};  // empty: by norm_topk_prob
};

// The parts of a LayerConfig that a mixture sets. Fails for shared experts and contradictions.
LayerConfig read_experts(const ConfigReader& reader, const ExpertKeys& keys);
void use_experts(const LayerConfig& experts, LayerConfig& layer);

inline const ExpertNames kMlpExperts = {"model.layers.{}.mlp.gate.weight",
                                        "model.layers.{}.mlp.experts.{e}.gate_proj.weight",
                                        "model.layers.{}.mlp.experts.{e}.up_proj.weight",
                                        "model.layers.{}.mlp.experts.{e}.down_proj.weight"};

}  // namespace unpack::model
