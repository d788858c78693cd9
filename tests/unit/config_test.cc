#include <nlohmann/json.hpp>

#include "model/load.h"
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

const json kSmallLlama = {{"model_type", "llama"},    {"hidden_size", 64},
                          {"num_attention_heads", 4}, {"num_hidden_layers", 2},
                          {"intermediate_size", 128}, {"vocab_size", 100}};

std::vector<int> windows(const ModelConfig& c) {
  std::vector<int> out;
  for (const LayerConfig& layer : c.layers) out.push_back(layer.window);
  return out;
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

TEST(ModelConfig, IsGatedWhereSomeLayerIs) {
  ModelConfig config;
  EXPECT_FALSE(config.gated());
  config.layers.resize(2);
  EXPECT_FALSE(config.gated());
  config.layers[1].mlp = MlpKind::gated;
  EXPECT_TRUE(config.gated());
}

TEST(ConfigDefaults, OfGpt2AreThoseOfTheTransformersLibrary) {
  const ModelConfig c = parse({{"model_type", "gpt2"}});
  EXPECT_EQ(c.family, "gpt2");
  EXPECT_EQ(c.n_layers, 12);
  EXPECT_EQ(c.n_heads, 12);
  EXPECT_EQ(c.n_kv_heads, 12);
  EXPECT_EQ(c.d_model, 768);
  EXPECT_EQ(c.d_head, 64);
  EXPECT_EQ(c.layer(0).n_neurons, 3072);
  EXPECT_EQ(c.vocab_size, 50257);
  EXPECT_EQ(c.n_ctx, 1024);
  EXPECT_EQ(c.norm, Norm::layer);
  EXPECT_EQ(c.block, Block::sequential);
  EXPECT_EQ(c.layer(0).mlp, MlpKind::plain);
  EXPECT_EQ(c.positions, Positions::learned);
  EXPECT_EQ(c.layer(0).activation, Activation::gelu_tanh);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(c.bos_token, 50256);
  EXPECT_TRUE(c.prepend_bos);
}

TEST(ConfigDefaults, OfGptNeoxAreThoseOfTheTransformersLibrary) {
  const ModelConfig c = parse({{"model_type", "gpt_neox"}});
  EXPECT_EQ(c.n_layers, 44);
  EXPECT_EQ(c.n_heads, 64);
  EXPECT_EQ(c.d_model, 6144);
  EXPECT_EQ(c.layer(0).n_neurons, 24576);
  EXPECT_EQ(c.vocab_size, 50432);
  EXPECT_EQ(c.n_ctx, 2048);
  EXPECT_EQ(c.block, Block::parallel);
  EXPECT_EQ(c.layer(0).activation, Activation::gelu_erf);
  EXPECT_EQ(c.positions, Positions::rotary);
  EXPECT_EQ(c.layer(0).rope.dims, 24);
  EXPECT_EQ(c.layer(0).rope.base, 10000.0);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(c.bos_token, 0);
  EXPECT_TRUE(c.prepend_bos);
}

TEST(ConfigDefaults, OfLlamaMistralAndQwenAreThoseOfTheTransformersLibrary) {
  const ModelConfig llama = parse({{"model_type", "llama"}});
  EXPECT_EQ(llama.layer(0).n_neurons, 11008);
  EXPECT_EQ(llama.n_kv_heads, 32);
  EXPECT_EQ(llama.n_ctx, 2048);
  EXPECT_EQ(llama.bos_token, 1);
  EXPECT_EQ(llama.norm, Norm::rms);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_TRUE(llama.gated());
  EXPECT_EQ(windows(llama), std::vector<int>(32, 0));
  EXPECT_TRUE(llama.prepend_bos) << "where the tokenizer file says nothing of it";
  EXPECT_EQ(llama.layer(0).rope.dims, 128);

  const ModelConfig mistral = parse({{"model_type", "mistral"}});
  EXPECT_EQ(mistral.layer(0).n_neurons, 14336);
  EXPECT_EQ(mistral.n_kv_heads, 8);
  EXPECT_EQ(mistral.n_ctx, 131072);
  EXPECT_TRUE(mistral.prepend_bos);
  EXPECT_EQ(windows(mistral), std::vector<int>(32, 4096));

  const ModelConfig qwen2 = parse({{"model_type", "qwen2"}});
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.layer(0).n_neurons, 22016);
  EXPECT_EQ(qwen2.n_kv_heads, 32);
  EXPECT_EQ(qwen2.n_ctx, 32768);
  EXPECT_FALSE(qwen2.bos_token);
  EXPECT_FALSE(qwen2.prepend_bos);
  EXPECT_EQ(qwen2.layer(0).qk_norm, QkNorm::none);
  EXPECT_EQ(windows(qwen2), std::vector<int>(32, 0));

  const ModelConfig qwen3 = parse({{"model_type", "qwen3"},
                                   {"hidden_size", 1024},
                                   {"num_attention_heads", 16},
                                   {"num_key_value_heads", 8}});
  EXPECT_EQ(qwen3.d_head, 128);
  EXPECT_EQ(qwen3.layer(0).qk_norm, QkNorm::head);
  EXPECT_FALSE(qwen3.prepend_bos);
}

TEST(ConfigNull, MeansWhatItMeansInTheTransformersLibrary) {
  EXPECT_EQ(
      parse({{"model_type", "gpt2"}, {"n_inner", nullptr}, {"n_embd", 96}}).layer(0).n_neurons,
      384);
  EXPECT_EQ(parse({{"model_type", "mistral"}, {"num_key_value_heads", nullptr}}).n_kv_heads, 32);
  EXPECT_EQ(windows(parse({{"model_type", "mistral"}, {"sliding_window", nullptr}})),
            std::vector<int>(32, 0));
  EXPECT_EQ(parse({{"model_type", "qwen3"},
                   {"head_dim", nullptr},
                   {"hidden_size", 1024},
                   {"num_attention_heads", 32}})
                .d_head,
            32);
  EXPECT_FALSE(parse({{"model_type", "gpt2"}, {"bos_token_id", nullptr}}).bos_token);
  EXPECT_EQ(parse({{"model_type", "llama"}, {"rope_scaling", nullptr}}).layer(0).rope.scaling,
            RopeScaling::none);
}

TEST(Config, BosTokenOutsideTheVocabularyIsNone) {
  EXPECT_FALSE(parse({{"model_type", "gpt2"}, {"vocab_size", 40}}).bos_token);
  EXPECT_FALSE(parse({{"model_type", "gpt2"}, {"vocab_size", 40}, {"bos_token_id", 40}}).bos_token);
  EXPECT_EQ(parse({{"model_type", "gpt2"}, {"vocab_size", 40}, {"bos_token_id", 39}}).bos_token,
            39);
}

TEST(Config, Gpt2TakesTheCommonNamesOfItsSizes) {
  const ModelConfig c = parse({{"model_type", "gpt2"},
                               {"hidden_size", 96},
                               {"num_attention_heads", 6},
                               {"num_hidden_layers", 3},
                               {"max_position_embeddings", 50}});
  EXPECT_EQ(c.d_model, 96);
  EXPECT_EQ(c.n_heads, 6);
  EXPECT_EQ(c.n_layers, 3);
  EXPECT_EQ(c.n_ctx, 50);
}

TEST(Config, KnowsTheActivations) {
  const auto activation = [](const char* name) {
    return parse({{"model_type", "gpt_neox"}, {"hidden_act", name}}).layer(0).activation;
  };
  EXPECT_EQ(activation("gelu"), Activation::gelu_erf);
  EXPECT_EQ(activation("gelu_new"), Activation::gelu_tanh);
  EXPECT_EQ(activation("gelu_fast"), Activation::gelu_tanh);
  EXPECT_EQ(activation("gelu_pytorch_tanh"), Activation::gelu_tanh);
  EXPECT_EQ(activation("relu"), Activation::relu);
  EXPECT_EQ(activation("silu"), Activation::silu);
  EXPECT_EQ(activation("swish"), Activation::silu);
  expect_mentions(parse_error({{"model_type", "gpt_neox"}, {"hidden_act", "mish"}}),
                  {"hidden_act", "'mish'", "gelu_new"});
}

TEST(ConfigRope, OldAndNewKeysOfGptNeoxSayTheSame) {
  const json base = {{"model_type", "gpt_neox"}, {"hidden_size", 256}, {"num_attention_heads", 4}};
  const ModelConfig old_keys = parse(with(base, {{"rotary_pct", 0.5}, {"rotary_emb_base", 5000}}));
  const ModelConfig new_keys = parse(
      with(base,
           {{"rope_parameters",
             {{"rope_type", "default"}, {"rope_theta", 5000.0}, {"partial_rotary_factor", 0.5}}}}));
  for (const ModelConfig& c : {old_keys, new_keys}) {
    EXPECT_EQ(c.layer(0).rope.dims, 32);
    EXPECT_EQ(c.layer(0).rope.base, 5000.0);
    EXPECT_EQ(c.layer(0).rope.scaling, RopeScaling::none);
  }
}

TEST(ConfigRope, OldAndNewKeysOfLlamaSayTheSame) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.5},
                        {"high_freq_factor", 4.5},
                        {"original_max_position_embeddings", 128}};
  const ModelConfig old_keys =
      parse(with(kSmallLlama, {{"rope_theta", 500000.0}, {"rope_scaling", scaling}}));
  const ModelConfig new_keys =
      parse(with(kSmallLlama, {{"rope_parameters", with(scaling, {{"rope_theta", 500000.0}})}}));
  for (const ModelConfig& c : {old_keys, new_keys}) {
    EXPECT_EQ(c.layer(0).rope.base, 500000.0);
    EXPECT_EQ(c.layer(0).rope.dims, 16);
    EXPECT_EQ(c.layer(0).rope.scaling, RopeScaling::llama3);
    EXPECT_EQ(c.layer(0).rope.factor, 8.0);
    EXPECT_EQ(c.layer(0).rope.low_freq_factor, 1.5);
    EXPECT_EQ(c.layer(0).rope.high_freq_factor, 4.5);
    EXPECT_EQ(c.layer(0).rope.original_context, 128);
  }
}

TEST(ConfigRope, LinearScalingIsNamedByTypeOrRopeType) {
  for (const char* key : {"type", "rope_type"}) {
    const ModelConfig c =
        parse(with(kSmallLlama, {{"rope_scaling", {{key, "linear"}, {"factor", 2.5}}}}));
    EXPECT_EQ(c.layer(0).rope.scaling, RopeScaling::linear);
    EXPECT_EQ(c.layer(0).rope.factor, 2.5);
  }
}

TEST(ConfigRope, OtherTypesAndHalfSpecifiedOnesAreRefused) {
  for (const char* type : {"dynamic", "su", "mrope", "proportional"}) {
    expect_mentions(
        parse_error(with(kSmallLlama, {{"rope_scaling", {{"rope_type", type}, {"factor", 2}}}})),
        {type, "linear", "llama3", "yarn", "longrope"});
  }
  expect_mentions(parse_error(with(kSmallLlama, {{"rope_scaling", {{"type", "linear"}}}})),
                  {"rope_scaling.factor", "missing"});
  expect_mentions(parse_error(with(kSmallLlama, {{"rope_parameters",
                                                  {{"rope_type", "llama3"}, {"factor", 8}}}})),
                  {"rope_parameters.low_freq_factor"});
  expect_mentions(
      parse_error(with(kSmallLlama, {{"rope_scaling", {{"type", "linear"}, {"factor", -1}}}})),
      {"rope_scaling.factor"});
  expect_mentions(parse_error(with(kSmallLlama, {{"rope_scaling", "linear"}})),
                  {"rope_scaling", "object"});
  expect_mentions(parse_error(with(kSmallLlama, {{"rope_theta", 0}})), {"rope_theta"});
  EXPECT_EQ(parse(with(kSmallLlama, {{"partial_rotary_factor", 0.5}})).layer(0).rope.dims, 8);
  expect_mentions(parse_error(with(kSmallLlama, {{"partial_rotary_factor", 1.5}})), {"1.5"});
  expect_mentions(parse_error({{"model_type", "gpt_neox"}, {"rotary_pct", 1.5}}), {"1.5"});
  expect_mentions(parse_error({{"model_type", "gpt_neox"}, {"rotary_pct", 0.01}}), {"rotated"});
  expect_mentions(parse_error(with(kSmallLlama, {{"head_dim", 7}})), {"7", "even"});
}

TEST(ConfigSlidingWindow, OfQwenIsInForceOnlyWhenSwitchedOnAndReached) {
  for (const char* family : {"qwen2", "qwen3"}) {
    const json base = {{"model_type", family}, {"sliding_window", 64}, {"num_hidden_layers", 4}};
    const auto of = [&](const json& changes) { return windows(parse(with(base, changes))); };
    const std::vector<int> none(4, 0);
    EXPECT_EQ(of(json::object()), none);
    EXPECT_EQ(of({{"use_sliding_window", true}}), none) << "28 layers come first by default";
    EXPECT_EQ(of({{"use_sliding_window", true}, {"max_window_layers", 3}}),
              (std::vector<int>{0, 0, 0, 64}));
    EXPECT_EQ(of({{"use_sliding_window", true}, {"max_window_layers", 4}}), none);
    const json mixed = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
    EXPECT_EQ(of({{"use_sliding_window", true}, {"layer_types", mixed}}),
              (std::vector<int>{0, 64, 0, 0}));
    EXPECT_EQ(of({{"use_sliding_window", false}, {"layer_types", mixed}}), none);
    EXPECT_EQ(of({{"use_sliding_window", true},
                  {"layer_types", json(std::vector<std::string>(4, "full_attention"))}}),
              none);
    expect_mentions(parse_error(with(base, {{"layer_types", json::array({"full_attention"})}})),
                    {"layer_types", "1", "4"});
    expect_mentions(
        parse_error(
            with(base, {{"layer_types", json(std::vector<std::string>(4, "linear_attention"))}})),
        {"linear_attention"});
    expect_mentions(parse_error(with(base, {{"layer_types", 3}})), {"layer_types"});
  }
  EXPECT_EQ(windows(parse({{"model_type", "mistral"}, {"sliding_window", 128}})),
            std::vector<int>(32, 128));
}

TEST(ConfigUnsupported, SettingsOfGpt2ThatChangeTheMathsAreNamed) {
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"scale_attn_weights", false}}),
                  {"scale_attn_weights"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"scale_attn_by_inverse_layer_idx", true}}),
                  {"scale_attn_by_inverse_layer_idx"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"add_cross_attention", true}}),
                  {"add_cross_attention"});
  EXPECT_NO_THROW(parse({{"model_type", "gpt2"}, {"reorder_and_upcast_attn", true}}));
}

TEST(ConfigUnsupported, FamiliesAreAnsweredWithTheListOfThoseThatAre) {
  for (const char* family : {"bert", "qwen2_moe", "deepseek_v3", "mamba", "gemma4"}) {
    expect_mentions(parse_error({{"model_type", family}}),
                    {family,
                     "gpt2, gpt_neox, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, "
                     "gemma3, olmo2, phi3, smollm3, granite, mixtral, qwen3_moe, olmoe, gpt_oss"});
  }
  expect_mentions(parse_error(json::object()), {"model_type", "gpt2, gpt_neox"});
}

TEST(ConfigUnsupported, QuantisedCheckpointsAreNamed) {
  const auto error = [](const json& quantisation) {
    return parse_error(with(kSmallLlama, {{"quantization_config", quantisation}}));
  };
  expect_mentions(error({{"quant_method", "aqlm"}}), {"quantised", "aqlm", "bfloat16"});
  expect_mentions(error({{"quant_method", "gptq"}, {"bits", 3}}), {"quantised", "gptq", "3 bits"});
  expect_mentions(error({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}),
                  {"awq", "gemv"});
  expect_mentions(error({{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}),
                  {"bitsandbytes", "8 bits"});
  expect_mentions(error({{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}),
                  {"compressed-tensors", "pack-quantized"});
  expect_mentions(error({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), {"fp8", "e5m2"});
  expect_mentions(error({{"quant_method", "mxfp4"}}), {"mxfp4"});
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 0}};
  expect_mentions(error(gptq), {"group_size"});
}

TEST(ConfigBad, TextThatIsNoJsonObject) {
  const auto error = [](const char* text) {
    return input_error([&] { model::parse_config(text, "config.json"); });
  };
  expect_mentions(error(""), {"config.json", "not valid JSON"});
  expect_mentions(error("{\"model_type\": "), {"not valid JSON"});
  expect_mentions(error("[]"), {"JSON object"});
  expect_mentions(error("\xff\xfe"), {"not valid JSON"});
  expect_mentions(error(R"({"model_type": "gpt2", "n_layer": 2, "n_layer": 3})"),
                  {"n_layer", "twice"});
}

TEST(ConfigBad, ValuesOfTheWrongType) {
  for (const json& value : {json("12"), json(1.5), json(true), json::array({1}), json::object()}) {
    expect_mentions(parse_error({{"model_type", "gpt2"}, {"n_layer", value}}),
                    {"n_layer", "whole number"});
  }
  expect_mentions(parse_error({{"model_type", 7}}), {"model_type", "string"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"tie_word_embeddings", "yes"}}),
                  {"tie_word_embeddings", "true or false"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"layer_norm_epsilon", "small"}}),
                  {"layer_norm_epsilon", "number"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"activation_function", 3}}),
                  {"activation_function", "string"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"bos_token_id", "x"}}), {"bos_token_id"});
  EXPECT_EQ(parse({{"model_type", "gpt2"}, {"n_layer", 3.0}}).n_layers, 3);
}

TEST(ConfigBad, SizesThatCannotBe) {
  for (const char* key : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner"}) {
    for (const json& value :
         {json(0), json(-1), json(2'000'000'000), json(1e14), json(18446744073709551615ull)}) {
      expect_mentions(parse_error({{"model_type", "gpt2"}, {key, value}}), {key, "from 1 to"});
    }
  }
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"n_layer", 20000}}), {"20000 layers"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"n_embd", 100}, {"n_head", 3}}),
                  {"3 heads", "100"});
  expect_mentions(
      parse_error(with(kSmallLlama,
                       {{"num_attention_heads", 6}, {"head_dim", 8}, {"num_key_value_heads", 4}})),
      {"6 query heads", "4 key/value"});
  expect_mentions(parse_error(with(kSmallLlama, {{"num_attention_heads", 100000},
                                                 {"head_dim", 100000},
                                                 {"num_key_value_heads", 1}})),
                  {"heads of size"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"n_embd", 96'000'000}}), {"n_embd"});
  expect_mentions(parse_error({{"model_type", "gpt2"}, {"layer_norm_epsilon", 0}}),
                  {"layer_norm_epsilon"});
}

TEST(KnownShapes, AreConfigsOfThePublishedSizes) {
  for (const std::string& name : model::known_shapes())
    EXPECT_NO_THROW(model::parse_config(model::known_shape(name), name)) << name;
  const ModelConfig llama = model::parse_config(model::known_shape("llama-3.2-1b"), "");
  EXPECT_EQ(llama.n_layers, 16);
  EXPECT_EQ(llama.d_model, 2048);
  EXPECT_EQ(llama.n_heads, 32);
  EXPECT_EQ(llama.n_kv_heads, 8);
  EXPECT_EQ(llama.d_head, 64);
  EXPECT_EQ(llama.layer(0).n_neurons, 8192);
  EXPECT_EQ(llama.vocab_size, 128256);
  EXPECT_TRUE(llama.tied_head);
  EXPECT_EQ(llama.dtype, DType::bf16);
  expect_mentions(input_error([] { model::known_shape("gpt5"); }),
                  {"gpt5", "gpt2-small", "qwen3-0.6b"});
}

}  // namespace
}  // namespace unpack
