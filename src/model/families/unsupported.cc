// Well-known model types that are not supported, and what they have that is missing here.
#include <algorithm>
#include <iterator>

#include "model/family.h"

namespace unpack::model {
namespace {

constexpr std::string_view kShared = "shared experts", kSpace = "state-space layers",
                           kRecurrent = "recurrent layers", kLatent = "latent attention (MLA)",
                           kLatentShared = "latent attention (MLA) and shared experts",
                           kSpaceShared = "state-space layers and shared experts",
                           kEncoder = "an encoder", kCross = "cross-attention to pictures";

struct Missing {
  std::string_view model_type, part;
};

constexpr Missing kMissing[] = {{"bamba", kSpace},
                                {"bart", kEncoder},
                                {"bert", kEncoder},
                                {"deepseek", kShared},
                                {"deepseek_v2", kLatentShared},
                                {"deepseek_v3", kLatentShared},
                                {"dots1", kShared},
                                {"ernie4_5_moe", kShared},
                                {"falcon_h1", kSpace},
                                {"falcon_mamba", kSpace},
                                {"gemma3n", "per-layer embeddings and several streams at once"},
                                {"glm4_moe", kShared},
                                {"granitemoehybrid", kSpaceShared},
                                {"granitemoeshared", kShared},
                                {"hunyuan_v1_moe", kShared},
                                {"jamba", kSpace},
                                {"kimi_k2", kLatentShared},
                                {"lfm2", "convolutions between tokens"},
                                {"llama4", kShared},
                                {"llama4_text", kShared},
                                {"mamba", kSpace},
                                {"mamba2", kSpace},
                                {"minicpm3", kLatent},
                                {"minimax", "linear attention"},
                                {"mllama", kCross},
                                {"nemotron_h", kSpace},
                                {"plamo2", kSpace},
                                {"qwen2_moe", kShared},
                                {"qwen3_next", "linear attention and shared experts"},
                                {"recurrent_gemma", kRecurrent},
                                {"roberta", kEncoder},
                                {"rwkv", kRecurrent},
                                {"t5", kEncoder},
                                {"xlstm", kRecurrent},
                                {"zamba", kSpace},
                                {"zamba2", kSpace}};

}  // namespace

std::string_view missing_part(std::string_view model_type) {
  const auto* const found =
      std::find_if(std::begin(kMissing), std::end(kMissing),
                   [&](const Missing& m) { return m.model_type == model_type; });
  return found == std::end(kMissing) ? std::string_view() : found->part;
}

}  // namespace unpack::model
