// config.json of the families beside GPT-2, GPT-NeoX, Llama, Mistral and Qwen: what their keys
// mean, their defaults, and what is refused.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/load.h"
#include "unit/random_model.h"
#include "unit/weights_files.h"

namespace unpack {
namespace {

using nlohmann::json;
using test::expect_mentions;
using test::input_error;

ModelConfig parse(const json& config) { return model::parse_config(config.dump(), "config.json"); }
std::string parse_error(const json& config) {
  const std::string error = input_error([&] { parse(config); });
  expect_mentions(error, {"config.json"});
  return error;
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

std::vector<int> windows(const ModelConfig& c) {
  std::vector<int> out;
  for (const LayerConfig& layer : c.layers) out.push_back(layer.window);
  return out;
}

json four_layers(const std::string& family) {
  return {{"model_type", family}, {"num_hidden_layers", 4}};
}

TEST(ConfigOfGemma, HasAHeadSizeAndTheTanhFormOfGelu) {
  const ModelConfig c = parse({{"model_type", "gemma"}});
  EXPECT_EQ(c.d_head, 256);
  EXPECT_EQ(c.norm, Norm::rms);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_TRUE(c.tied_head);
  EXPECT_TRUE(c.prepend_bos);
  EXPECT_EQ(c.bos_token, 2);
  EXPECT_EQ(c.layer(0).activation, Activation::gelu_tanh);
  EXPECT_EQ(c.layer(0).attention_scale, 1.0 / 16);
  EXPECT_FALSE(c.layer(0).post_norm());
  EXPECT_EQ(windows(c), std::vector<int>(28, 0));
}

TEST(ConfigOfGemma2, HasCapsNormsBehindAndEveryOtherLayerSliding) {
  const json base = four_layers("gemma2");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.logit_cap, 30.0);
  EXPECT_EQ(windows(c), (std::vector<int>{4096, 0, 4096, 0}));
  for (const LayerConfig& layer : c.layers) {
    EXPECT_EQ(layer.attention_cap, 50.0);
    EXPECT_EQ(layer.attention_scale, 1.0 / 16);
    EXPECT_TRUE(layer.attn_post_norm && layer.mlp_post_norm);
    EXPECT_EQ(layer.attn_norm, Norm::rms);
  }
  const ModelConfig none = parse(
      with(base, {{"attn_logit_softcapping", nullptr},
                  {"final_logit_softcapping", nullptr},
                  {"query_pre_attn_scalar", 144},
                  {"sliding_window", 7},
                  {"layer_types",
                   {"full_attention", "full_attention", "sliding_attention", "full_attention"}}}));
  EXPECT_EQ(none.logit_cap, 0.0);
  EXPECT_EQ(none.layer(1).attention_cap, 0.0);
  EXPECT_DOUBLE_EQ(none.layer(1).attention_scale, 1.0 / 12);
  EXPECT_EQ(windows(none), (std::vector<int>{0, 0, 7, 0})) << "layer_types decides";
  EXPECT_EQ(windows(parse(with(base, {{"sliding_window", nullptr}}))), std::vector<int>(4, 0));
}

TEST(ConfigOfGemma3, HasTwoRotariesAndNoCapOfAttention) {
  json base = four_layers("gemma3_text");
  base["num_hidden_layers"] = 7;
  base["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelConfig c = parse(base);
  EXPECT_EQ(windows(c), (std::vector<int>{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(c.logit_cap, 0.0);
  for (const LayerConfig& layer : c.layers) {
    EXPECT_EQ(layer.attention_cap, 0.0);
    EXPECT_EQ(layer.qk_norm, QkNorm::head);
    EXPECT_EQ(layer.rope.base, layer.window > 0 ? 1e4 : 1e6);
    EXPECT_EQ(layer.rope.scaling, layer.window > 0 ? RopeScaling::none : RopeScaling::linear);
    EXPECT_EQ(layer.rope.dims, 256);
  }
  EXPECT_EQ(parse(with(base, {{"final_logit_softcapping", 20.0}})).logit_cap, 20.0);
  EXPECT_EQ(windows(parse(with(base, {{"sliding_window_pattern", 2}}))),
            (std::vector<int>{4096, 0, 4096, 0, 4096, 0, 4096}));
  // The newer way to write both rotaries.
  json fresh = base;
  fresh.erase("rope_scaling");
  fresh["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const ModelConfig other = parse(fresh);
  for (int l = 0; l < 7; ++l) EXPECT_EQ(other.layer(l).rope, c.layer(l).rope) << l;
}

TEST(ConfigOfGemma3, IsReadFromTheTextPartOfALargerModel) {
  json text = four_layers("gemma3_text");
  const json whole = {{"model_type", "gemma3"}, {"text_config", text}, {"vision_config", {}}};
  EXPECT_EQ(parse(whole).family, "gemma3");
  EXPECT_EQ(windows(parse(whole)), windows(parse(text)));
  EXPECT_EQ(parse(whole).d_model, parse(text).d_model);
  expect_mentions(parse_error({{"model_type", "gemma3"}}), {"text_config"});
  text["sliding_window"] = 0;
  expect_mentions(parse_error(with(whole, {{"text_config", text}})), {"sliding_window"});
}

TEST(ConfigOfOlmo2, HasNormsBehindAlone) {
  const ModelConfig c = parse(four_layers("olmo2"));
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.norm, Norm::rms);
  EXPECT_EQ(c.layer(0).attn_norm, Norm::none);
  EXPECT_EQ(c.layer(0).mlp_norm, Norm::none);
  EXPECT_TRUE(c.layer(0).attn_post_norm && c.layer(0).mlp_post_norm);
  EXPECT_EQ(c.layer(0).qk_norm, QkNorm::projection);
}

TEST(ConfigOfPhi3, RotatesAPartAndHasFactorsForLongPrompts) {
  const json base = with(four_layers("phi3"), {{"hidden_size", 64},
                                               {"num_attention_heads", 4},
                                               {"partial_rotary_factor", 0.5},
                                               {"max_position_embeddings", 64}});
  EXPECT_EQ(parse(base).layer(0).rope.dims, 8);
  EXPECT_EQ(parse(base).norm_eps, 1e-5);
  EXPECT_EQ(windows(parse(base)), std::vector<int>(4, 0));
  EXPECT_EQ(windows(parse(with(base, {{"sliding_window", nullptr}}))), std::vector<int>(4, 0));
  EXPECT_EQ(windows(parse(with(base, {{"sliding_window", 5}}))), std::vector<int>(4, 5));
  const json factors = {{"short_factor", {1.0, 1.1, 1.2, 1.3}},
                        {"long_factor", {2.0, 3.0, 4.0, 5.0}},
                        {"original_max_position_embeddings", 32}};
  for (const char* type : {"longrope", "su", "yarn"}) {
    const json own = with(base, {{"rope_scaling", with(factors, {{"type", type}})},
                                 {"original_max_position_embeddings", 16}});
    const Rope rope = parse(own).layer(3).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::longrope) << type;
    EXPECT_EQ(rope.original_context, 16) << "the one of the whole config goes first";
    EXPECT_EQ(rope.long_factor, (std::vector<double>{2, 3, 4, 5}));
    EXPECT_DOUBLE_EQ(rope.amplitude, std::sqrt(1 + std::log(4.0) / std::log(16.0)));
  }
  const auto amplitude = [&](const json& changes) {
    return parse(with(base, {{"rope_scaling", with(with(factors, {{"type", "longrope"}}), changes)},
                             {"original_max_position_embeddings", 16}}))
        .layer(0)
        .rope.amplitude;
  };
  EXPECT_DOUBLE_EQ(amplitude({{"factor", 9.0}}), std::sqrt(1 + std::log(9.0) / std::log(16.0)));
  EXPECT_EQ(amplitude({{"factor", 1.0}}), 1.0);
  EXPECT_EQ(amplitude({{"attention_factor", 1.75}}), 1.75);
  expect_mentions(
      parse_error(with(base, {{"rope_scaling", with(factors, {{"type", "longrope"},
                                                              {"short_factor", {1.0, 1.1}}})}})),
      {"short_factor", "2", "4"});
  expect_mentions(parse_error(with(base, {{"rope_scaling", {{"type", "longrope"}}}})),
                  {"short_factor"});
}

TEST(ConfigOfSmolLm3, LeavesSomeLayersUnrotated) {
  json base = four_layers("smollm3");
  const auto dims = [](const ModelConfig& c) {
    std::vector<int> out;
    for (const LayerConfig& layer : c.layers) out.push_back(layer.rope.dims);
    return out;
  };
  EXPECT_EQ(dims(parse(base)), (std::vector<int>{128, 128, 128, 0}));
  EXPECT_EQ(parse(base).layer(0).rope.base, 2e6);
  EXPECT_EQ(dims(parse(with(base, {{"no_rope_layer_interval", 2}}))),
            (std::vector<int>{128, 0, 128, 0}));
  const ModelConfig c = parse(with(
      base,
      {{"no_rope_layers", {0, 1, 1, 0}}, {"use_sliding_window", true}, {"sliding_window", 6}}));
  EXPECT_EQ(dims(c), (std::vector<int>{0, 128, 128, 0}));
  EXPECT_EQ(windows(c), (std::vector<int>{6, 0, 0, 6}));
  EXPECT_EQ(windows(parse(with(base, {{"sliding_window", 6}}))), std::vector<int>(4, 0));
  expect_mentions(parse_error(with(base, {{"no_rope_layers", {0, 1}}})),
                  {"no_rope_layers", "2", "4"});
}

TEST(ConfigOfGranite, HasFourMultipliers) {
  EXPECT_EQ(parse(four_layers("granite")).layer(0).attention_scale, 1.0);
  const ModelConfig c = parse(
      with(four_layers("granite"), {{"attention_multiplier", 0.25}, {"logits_scaling", 8.0}}));
  EXPECT_EQ(c.layer(0).attention_scale, 0.25);
  EXPECT_EQ(c.logit_scale, 0.125);
  for (const char* key :
       {"attention_multiplier", "logits_scaling", "embedding_multiplier", "residual_multiplier"})
    expect_mentions(parse_error(with(four_layers("granite"), {{key, 0.0}})), {key});
}

TEST(ConfigOfMixtures, SaysHowManyExpertsAndHowTheyAreWeighed) {
  const ModelConfig mixtral = parse(four_layers("mixtral"));
  EXPECT_EQ(mixtral.layer(3).n_experts, 8);
  EXPECT_EQ(mixtral.layer(3).experts_per_token, 2);
  EXPECT_EQ(mixtral.layer(3).expert_weights, ExpertWeights::all_divided);
  EXPECT_EQ(mixtral.layer(3).rope.base, 1e6);
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(windows(mixtral), std::vector<int>(4, 0));
  EXPECT_EQ(windows(parse(with(four_layers("mixtral"), {{"sliding_window", 9}}))),
            std::vector<int>(4, 9));
  EXPECT_TRUE(mixtral.mixture());
  EXPECT_EQ(mixtral.most_entries(), 2 * 14336);

  const json qwen = with(four_layers("qwen3_moe"), {{"num_experts", 6},
                                                    {"intermediate_size", 40},
                                                    {"moe_intermediate_size", 12},
                                                    {"num_experts_per_tok", 3}});
  const auto sparse = [&](const json& changes) {
    std::vector<int> out;
    const ModelConfig c = parse(with(qwen, changes));
    for (const LayerConfig& layer : c.layers) {
      EXPECT_EQ(layer.n_neurons, layer.mixture() ? 12 : 40);
      EXPECT_EQ(layer.entries(), layer.mixture() ? 36 : 40);
      out.push_back(layer.n_experts);
    }
    return out;
  };
  EXPECT_EQ(sparse(json::object()), (std::vector<int>{6, 6, 6, 6}));
  EXPECT_EQ(sparse({{"decoder_sparse_step", 2}}), (std::vector<int>{0, 6, 0, 6}));
  EXPECT_EQ(sparse({{"mlp_only_layers", {1, 2}}}), (std::vector<int>{6, 0, 0, 6}));
  EXPECT_EQ(parse(qwen).layer(0).expert_weights, ExpertWeights::all);
  EXPECT_EQ(parse(with(qwen, {{"norm_topk_prob", true}})).layer(0).expert_weights,
            ExpertWeights::all_divided);
  EXPECT_EQ(parse(qwen).layer(0).qk_norm, QkNorm::head);
  EXPECT_EQ(windows(parse(with(qwen, {{"use_sliding_window", true}, {"sliding_window", 5}}))),
            std::vector<int>(4, 5));

  const ModelConfig olmoe = parse(four_layers("olmoe"));
  EXPECT_EQ(olmoe.layer(0).n_experts, 64);
  EXPECT_EQ(olmoe.layer(0).experts_per_token, 8);
  EXPECT_EQ(olmoe.layer(0).expert_weights, ExpertWeights::all);
  EXPECT_EQ(olmoe.layer(0).qk_norm, QkNorm::projection);
  EXPECT_EQ(olmoe.norm_eps, 1e-5);
}

TEST(ConfigOfGptOss, HasSinksYarnAndWindowsByDefault) {
  const ModelConfig c = parse(four_layers("gpt_oss"));
  EXPECT_EQ(windows(c), (std::vector<int>{128, 0, 128, 0}));
  EXPECT_EQ(c.norm_eps, 1e-5);
  for (const LayerConfig& layer : c.layers) {
    EXPECT_TRUE(layer.sinks);
    EXPECT_EQ(layer.activation, Activation::clamped_swiglu);
    EXPECT_EQ(layer.expert_weights, ExpertWeights::chosen);
    EXPECT_EQ(layer.rope.scaling, RopeScaling::yarn);
    EXPECT_EQ(layer.rope.factor, 32);
    EXPECT_EQ(layer.rope.original_context, 4096);
    EXPECT_FALSE(layer.rope.truncate);
    EXPECT_EQ(layer.rope.base, 150000);
    EXPECT_DOUBLE_EQ(layer.rope.amplitude, 0.1 * std::log(32.0) + 1);
  }
  EXPECT_NO_THROW(
      parse(with(four_layers("gpt_oss"), {{"quantization_config", {{"quant_method", "mxfp4"}}}})));
  expect_mentions(parse_error(with(four_layers("mixtral"),
                                   {{"quantization_config", {{"quant_method", "mxfp4"}}}})),
                  {"mxfp4", "quantised"});
}

TEST(ConfigRopeYarn, FollowsItsKeys) {
  const json base =
      with(four_layers("llama"),
           {{"max_position_embeddings", 128}, {"hidden_size", 64}, {"num_attention_heads", 4}});
  const auto rope = [&](const json& changes) {
    return parse(with(base, {{"rope_scaling", with({{"rope_type", "yarn"},
                                                    {"original_max_position_embeddings", 32}},
                                                   changes)}}))
        .layer(0)
        .rope;
  };
  const Rope plain = rope({{"factor", 8.0}});
  EXPECT_EQ(plain.scaling, RopeScaling::yarn);
  EXPECT_EQ(plain.factor, 8);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_TRUE(plain.truncate);
  EXPECT_EQ(plain.original_context, 32);
  EXPECT_DOUBLE_EQ(plain.amplitude, 0.1 * std::log(8.0) + 1);
  EXPECT_EQ(rope({{"factor", nullptr}}).factor, 4) << "128 positions of 32";
  EXPECT_EQ(rope({{"factor", 1.0}}).amplitude, 1);
  EXPECT_EQ(rope({{"factor", 8.0}, {"attention_factor", 2.5}}).amplitude, 2.5);
  EXPECT_DOUBLE_EQ(rope({{"factor", 8.0}, {"mscale", 2.0}, {"mscale_all_dim", 0.5}}).amplitude,
                   (0.2 * std::log(8.0) + 1) / (0.05 * std::log(8.0) + 1));
  const Rope fresh = parse(with(base, {{"rope_parameters",
                                        {{"rope_type", "yarn"},
                                         {"rope_theta", 777.0},
                                         {"factor", 8.0},
                                         {"original_max_position_embeddings", 32}}}}))
                         .layer(0)
                         .rope;
  EXPECT_EQ(fresh.base, 777.0);
  EXPECT_EQ(fresh.amplitude, plain.amplitude);
}

TEST(ConfigContradictions, AreNamed) {
  for (const char* family : {"mixtral", "gpt_oss", "qwen3_moe", "olmoe"}) {
    const char* key = family == std::string("mixtral") || family == std::string("gpt_oss")
                          ? "num_local_experts"
                          : "num_experts";
    expect_mentions(parse_error(with(four_layers(family), {{key, 4}, {"num_experts_per_tok", 5}})),
                    {"num_experts_per_tok", "5", "4"});
    expect_mentions(parse_error(with(four_layers(family), {{key, 0}})), {key});
    expect_mentions(parse_error(with(four_layers(family), {{"num_experts_per_tok", 0}})),
                    {"num_experts_per_tok"});
    for (const char* shared :
         {"shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts"})
      expect_mentions(parse_error(with(four_layers(family), {{shared, 1}})),
                      {shared, "shared experts"});
  }
  for (const std::string& family : testing::kFamilies) {
    if (family == "gpt2" || family == "gpt_neox" || family == "gemma3") continue;
    expect_mentions(parse_error(with(four_layers(family), {{"layer_types", {"full_attention"}}})),
                    {"layer_types", "1", "4"});
  }
  for (const char* family : {"gemma2", "gemma3_text", "gpt_oss", "mistral", "mixtral", "phi3"}) {
    for (const json& window : {json(0), json(-1), json("wide")})
      expect_mentions(parse_error(with(four_layers(family), {{"sliding_window", window}})),
                      {"sliding_window"});
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const json& cap : {json(0), json(-30.0), json("large")})
      expect_mentions(parse_error(with(four_layers("gemma2"), {{key, cap}})), {key});
  }
  expect_mentions(parse_error(with(four_layers("gemma3_text"), {{"final_logit_softcapping", 0}})),
                  {"final_logit_softcapping"});
  expect_mentions(parse_error(with(four_layers("gemma2"), {{"query_pre_attn_scalar", 0}})),
                  {"query_pre_attn_scalar"});
  expect_mentions(parse_error(with(four_layers("olmoe"), {{"clip_qkv", 8.0}})), {"clip_qkv"});
  EXPECT_NO_THROW(parse(with(four_layers("olmoe"), {{"clip_qkv", nullptr}})));
}

TEST(ConfigContradictions, ListsOfLayersNameLayersThatAreThere) {
  for (const json& layers :
       {json::array({4}), json::array({1, 2, -1}), json::array({1'000'000'000'000})}) {
    expect_mentions(parse_error(with(four_layers("qwen3_moe"), {{"mlp_only_layers", layers}})),
                    {"mlp_only_layers", layers.back().dump(), "0 to 3"});
  }
  EXPECT_NO_THROW(parse(with(four_layers("qwen3_moe"), {{"mlp_only_layers", {0, 3, 3}}})));
  expect_mentions(parse_error(with(four_layers("smollm3"), {{"no_rope_layers", {1, 1, 7, 0}}})),
                  {"no_rope_layers", "7"});
  expect_mentions(parse_error(with(four_layers("qwen2"), {{"max_window_layers", -3}})),
                  {"max_window_layers", "-3"});
  // More than there are is what public files hold, where no layer slides.
  EXPECT_NO_THROW(parse(with(four_layers("qwen2"), {{"max_window_layers", 28}})));
  const json by_type = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  expect_mentions(parse_error(with(four_layers("llama"), {{"rope_parameters", by_type}})),
                  {"rope_parameters", "layer type"});
  EXPECT_NO_THROW(parse(with(four_layers("gemma3_text"), {{"rope_parameters", by_type}})));
}

TEST(ConfigUnsupported, SettingsOfAnyFamilyAreNamed) {
  for (const std::string& family : testing::kFamilies) {
    if (family == "gpt2" || family == "gpt_neox") continue;
    testing::Shape shape;
    shape.family = family;
    json config = json::parse(shape.config());
    json& inner = family == "gemma3" ? config["text_config"] : config;
    EXPECT_NO_THROW(parse(config)) << family;
    inner["use_bidirectional_attention"] = true;
    expect_mentions(parse_error(config), {"use_bidirectional_attention"});
    inner["use_bidirectional_attention"] = false;
    EXPECT_NO_THROW(parse(config)) << family;
    inner["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
    expect_mentions(parse_error(config), {"dynamic", "yarn"});
  }
}

TEST(ConfigEndTokens, AreOneOrAList) {
  const auto ends = [](const json& changes) {
    return parse(with({{"model_type", "llama"}, {"vocab_size", 100}}, changes)).end_tokens;
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(ends(json::object()), Ids{2});
  EXPECT_EQ(ends({{"eos_token_id", 7}}), Ids{7});
  EXPECT_EQ(ends({{"eos_token_id", {7, 9, 400}}}), (Ids{7, 9})) << "400 is no token";
  EXPECT_EQ(ends({{"eos_token_id", nullptr}}), Ids{});
}

}  // namespace
}  // namespace unpack
