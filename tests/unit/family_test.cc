#include "model/family.h"

#include <cmath>
#include <cstring>
#include <list>
#include <map>
#include <nlohmann/json.hpp>

#include "model/load.h"
#include "model/save.h"
#include "test_paths.h"
#include "unit/random_model.h"
#include "unit/weights_files.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_mentions;
using test::golden;
using test::input_error;
using test::read_all;
using test::TempFolder;

// A reader of its own, so that the loader is not compared with itself: element `index` of a tensor,
// straight from the files.
class DirectReader {
 public:
  explicit DirectReader(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".safetensors") continue;
      files_.push_back(read_all(entry.path()));
      std::uint64_t size = 0;
      std::memcpy(&size, files_.back().data(), 8);
      const json header = json::parse(files_.back().substr(8, size));
      for (const auto& [name, value] : header.items()) {
        if (name != "__metadata__")
          places_[name] = {files_.size() - 1,
                           8 + size + value["data_offsets"][0].get<std::size_t>(), value["dtype"]};
      }
    }
  }
  double at(const std::string& name, std::int64_t index) const {
    const Place& place = places_.at(name);
    const auto i = static_cast<std::size_t>(index);
    if (place.dtype == "F32") {
      float x;
      std::memcpy(&x, files_[place.file].data() + place.start + 4 * i, 4);
      return x;
    }
    std::uint16_t h;
    std::memcpy(&h, files_[place.file].data() + place.start + 2 * i, 2);
    if (place.dtype == "BF16") {
      const std::uint32_t bits = std::uint32_t{h} << 16;
      float x;
      std::memcpy(&x, &bits, 4);
      return x;
    }
    const int exponent = (h >> 10) & 31, fraction = h & 0x3FF;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
  }

 private:
  struct Place {
    std::size_t file, start;
    std::string dtype;
  };
  std::vector<std::string> files_;
  std::map<std::string, Place> places_;
};

void expect_shape(const model::WeightView& w, std::int64_t in, std::int64_t out) {
  ASSERT_TRUE(w);
  EXPECT_EQ(w.in, in);
  EXPECT_EQ(w.out, out);
}

void expect_shapes(const model::ModelWeights& m) {
  const ModelConfig& c = m.config;
  const std::int64_t D = c.d_model, HE = c.n_heads * c.d_head, GE = c.n_kv_heads * c.d_head;
  expect_shape(m[model::Role::embed], c.vocab_size, D);
  expect_shape(m[model::Role::unembed], c.vocab_size, D);
  expect_shape(m[model::Role::final_norm_w], 1, D);
  EXPECT_EQ(static_cast<bool>(m[model::Role::pos]), c.has_pos_writer());
  ASSERT_EQ(m.layers.size(), static_cast<std::size_t>(c.n_layers));
  for (int index = 0; index < c.n_layers; ++index) {
    const model::LayerWeights& l = m.layers[index];
    const LayerConfig& shape = c.layer(index);
    const std::int64_t N = shape.n_neurons;
    const auto expect_vector = [&](model::Role role, bool there, std::int64_t n) {
      EXPECT_EQ(static_cast<bool>(l[role]), there) << static_cast<int>(role);
      if (there) expect_shape(l[role], 1, n);
    };
    expect_vector(model::Role::attn_norm_w, shape.attn_norm != Norm::none, D);
    expect_vector(model::Role::mlp_norm_w, shape.mlp_norm != Norm::none, D);
    expect_vector(model::Role::attn_norm_b, shape.attn_norm == Norm::layer, D);
    expect_vector(model::Role::mlp_norm_b, shape.mlp_norm == Norm::layer, D);
    expect_vector(model::Role::attn_post_w, shape.attn_post_norm, D);
    expect_vector(model::Role::mlp_post_w, shape.mlp_post_norm, D);
    const bool whole = shape.qk_norm == QkNorm::projection;
    expect_vector(model::Role::q_norm, shape.qk_norm != QkNorm::none, whole ? HE : c.d_head);
    expect_vector(model::Role::k_norm, shape.qk_norm != QkNorm::none, whole ? GE : c.d_head);
    expect_vector(model::Role::sinks, shape.sinks, c.n_heads);
    expect_shape(l[model::Role::w_q], D, HE);
    expect_shape(l[model::Role::w_k], D, GE);
    expect_shape(l[model::Role::w_v], D, GE);
    expect_shape(l[model::Role::w_o], HE, D);
    EXPECT_EQ(static_cast<bool>(l[model::Role::w_r]), shape.mixture());
    if (shape.mixture()) expect_shape(l[model::Role::w_r], D, shape.n_experts);
    EXPECT_EQ(l.experts.size(), static_cast<std::size_t>(shape.n_experts));
    std::vector<const model::RoleViews*> mlps = {&l};
    if (shape.mixture()) {
      EXPECT_FALSE(l[model::Role::w_in]);
      mlps.clear();
      for (const model::RoleViews& expert : l.experts) mlps.push_back(&expert);
    }
    for (const model::RoleViews* mlp : mlps) {
      expect_shape((*mlp)[model::Role::w_in], D, N);
      expect_shape((*mlp)[model::Role::w_out], N, D);
      EXPECT_EQ(static_cast<bool>((*mlp)[model::Role::w_up]), shape.gated());
    }
  }
}

TEST(GoldenModels, OfGpt2HaveConv1dWeightsWithQKAndVSideBySide) {
  for (const char* name : {"tiny-gpt2", "small-gpt2", "one-token"}) {
    SCOPED_TRACE(name);
    const model::ModelWeights m = model::load_folder(golden(name));
    const DirectReader file(golden(name));
    expect_shapes(m);
    const std::string prefix = std::string(name) == "small-gpt2" ? "transformer." : "";
    const std::int64_t D = m.config.d_model;
    for (const auto& [i, o] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {3, 5}, {7, 2}}) {
      const std::string layer = prefix + "h.1.";
      EXPECT_EQ(m.layers[1][model::Role::w_q].at(i, o),
                file.at(layer + "attn.c_attn.weight", i * 3 * D + o));
      EXPECT_EQ(m.layers[1][model::Role::w_k].at(i, o),
                file.at(layer + "attn.c_attn.weight", i * 3 * D + D + o));
      EXPECT_EQ(m.layers[1][model::Role::w_v].at(i, o),
                file.at(layer + "attn.c_attn.weight", i * 3 * D + 2 * D + o));
      EXPECT_EQ(m.layers[1][model::Role::b_k].at(0, o), file.at(layer + "attn.c_attn.bias", D + o));
      EXPECT_EQ(m.layers[1][model::Role::w_o].at(i, o),
                file.at(layer + "attn.c_proj.weight", i * D + o));
      EXPECT_EQ(m.layers[1][model::Role::w_in].at(i, o),
                file.at(layer + "mlp.c_fc.weight", i * m.config.layer(1).n_neurons + o));
      EXPECT_EQ(m.layers[1][model::Role::w_out].at(i, o),
                file.at(layer + "mlp.c_proj.weight", i * D + o));
      EXPECT_EQ(m.layers[1][model::Role::b_out].at(0, o), file.at(layer + "mlp.c_proj.bias", o));
      EXPECT_EQ(m[model::Role::embed].at(i, o), file.at(prefix + "wte.weight", i * D + o));
      EXPECT_EQ(m[model::Role::pos].at(i, o), file.at(prefix + "wpe.weight", i * D + o));
      EXPECT_EQ(m[model::Role::unembed].at(i, o),
                file.at(prefix.empty() ? "wte.weight" : "lm_head.weight", i * D + o));
    }
  }
  EXPECT_TRUE(model::load_folder(golden("tiny-gpt2")).config.tied_head);
  EXPECT_FALSE(model::load_folder(golden("small-gpt2")).config.tied_head);
  EXPECT_EQ(model::load_folder(golden("small-gpt2")).config.dtype, DType::f16);
}

TEST(GoldenModels, OfGptNeoxInterleaveQKAndVPerHead) {
  for (const char* name : {"tiny-neox", "tiny-neox-sequential", "small-neox"}) {
    SCOPED_TRACE(name);
    const model::ModelWeights m = model::load_folder(golden(name));
    const DirectReader file(golden(name));
    expect_shapes(m);
    EXPECT_EQ(m.config.block,
              std::string(name) == "tiny-neox-sequential" ? Block::sequential : Block::parallel);
    const std::int64_t D = m.config.d_model, E = m.config.d_head;
    for (const auto& [i, o] :
         {std::pair<std::int64_t, std::int64_t>{0, 0}, {3, E - 1}, {5, E}, {7, E + 2}}) {
      const std::int64_t row = o / E * 3 * E + o % E;
      const std::string layer = "gpt_neox.layers.1.";
      EXPECT_EQ(m.layers[1][model::Role::w_q].at(i, o),
                file.at(layer + "attention.query_key_value.weight", row * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_k].at(i, o),
                file.at(layer + "attention.query_key_value.weight", (row + E) * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_v].at(i, o),
                file.at(layer + "attention.query_key_value.weight", (row + 2 * E) * D + i));
      EXPECT_EQ(m.layers[1][model::Role::b_q].at(0, o),
                file.at(layer + "attention.query_key_value.bias", row));
      EXPECT_EQ(m.layers[1][model::Role::b_v].at(0, o),
                file.at(layer + "attention.query_key_value.bias", row + 2 * E));
      EXPECT_EQ(m.layers[1][model::Role::w_o].at(i, o),
                file.at(layer + "attention.dense.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_in].at(i, o),
                file.at(layer + "mlp.dense_h_to_4h.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_out].at(i, o),
                file.at(layer + "mlp.dense_4h_to_h.weight", o * m.config.layer(1).n_neurons + i));
      EXPECT_EQ(m.layers[1][model::Role::mlp_norm_b].at(0, o),
                file.at(layer + "post_attention_layernorm.bias", o));
      EXPECT_EQ(m[model::Role::unembed].at(i, o), file.at("embed_out.weight", i * D + o));
    }
  }
  EXPECT_EQ(model::load_folder(golden("tiny-neox")).config.layer(0).rope.dims, 4);
  EXPECT_EQ(model::load_folder(golden("small-neox")).config.dtype, DType::bf16);
}

TEST(GoldenModels, OfLlamaAndQwenHaveGatesGroupsAndTheirOwnExtras) {
  for (const char* name : {"tiny-llama", "small-llama", "tiny-qwen2", "tiny-qwen3"}) {
    SCOPED_TRACE(name);
    const model::ModelWeights m = model::load_folder(golden(name));
    const DirectReader file(golden(name));
    expect_shapes(m);
    const std::int64_t D = m.config.d_model, HE = m.config.n_heads * m.config.d_head;
    const std::string layer = "model.layers.1.";
    for (const auto& [i, o] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {3, 5}, {7, 2}}) {
      EXPECT_EQ(m.layers[1][model::Role::w_q].at(i, o),
                file.at(layer + "self_attn.q_proj.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_k].at(i, o),
                file.at(layer + "self_attn.k_proj.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_o].at(i, o),
                file.at(layer + "self_attn.o_proj.weight", o * HE + i));
      EXPECT_EQ(m.layers[1][model::Role::w_in].at(i, o),
                file.at(layer + "mlp.gate_proj.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_up].at(i, o),
                file.at(layer + "mlp.up_proj.weight", o * D + i));
      EXPECT_EQ(m.layers[1][model::Role::w_out].at(i, o),
                file.at(layer + "mlp.down_proj.weight", o * m.config.layer(1).n_neurons + i));
      EXPECT_EQ(
          m[model::Role::unembed].at(i, o),
          file.at(m.config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight", i * D + o));
    }
    EXPECT_EQ(static_cast<bool>(m.layers[0][model::Role::b_q]), std::string(name) == "tiny-qwen2");
    EXPECT_FALSE(m.layers[0][model::Role::b_o]);
    if (m.config.layer(1).qk_norm != QkNorm::none) {
      EXPECT_EQ(m.layers[1][model::Role::k_norm].at(0, 3),
                file.at(layer + "self_attn.k_norm.weight", 3));
    }
  }
  EXPECT_TRUE(model::load_folder(golden("tiny-qwen3")).config.tied_head);
  EXPECT_EQ(model::load_folder(golden("tiny-qwen2")).config.layer(0).rope.scaling,
            RopeScaling::linear);
}

TEST(BundledModels, LoadWithTheSizesOfTheirCards) {
  const auto load = [](const char* name) {
    return model::load_folder(fs::path(UNPACK_SOURCE_DIR) / "models" / name);
  };
  const model::ModelWeights gpt2 = load("pocket-gpt2"), neox = load("pocket-neox"),
                            llama = load("pocket-llama");
  for (const model::ModelWeights* m : {&gpt2, &neox, &llama}) {
    expect_shapes(*m);
    EXPECT_EQ(m->config.dtype, DType::f16);
    EXPECT_EQ(m->config.bos_token, 0);
    EXPECT_EQ(m->config.n_ctx, 512);
  }
  EXPECT_EQ(gpt2.parameter_count(), 8546816u);
  EXPECT_EQ(neox.parameter_count(), 8933376u);
  EXPECT_EQ(llama.parameter_count(), 6524160u);
  EXPECT_EQ(gpt2.config.name, "pocket-gpt2");
}

// Every case below takes a good model apart and breaks one thing.
class OneThingChanged : public ::testing::Test {
 protected:
  void start(const json& config, DType dtype = DType::f32) {
    config_ = config;
    set_ = model::random_tensors(config.dump(), 5, dtype);
  }
  model::ModelWeights load() {
    return model::from_memory(config_.dump(), set_.tensors, set_.owner);
  }
  model::ModelWeights load_saved() {
    model::save_folder(config_.dump(), set_.tensors, folder_.path());
    return model::load_folder(folder_.path());
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = set_.tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    set_.tensors.insert(std::move(node));
  }
  void drop_prefix(const std::string& prefix) {
    const auto tensors = set_.tensors;
    for (const auto& [name, tensor] : tensors) {
      if (name.starts_with(prefix)) rename(name, name.substr(prefix.size()));
    }
  }
  // A copy of a tensor that may be written to.
  std::vector<std::byte>& own(const std::string& name) {
    model::StoredTensor& tensor = set_.tensors.at(name);
    std::vector<std::byte>& copy = copies_.emplace_back(tensor.data, tensor.data + tensor.bytes);
    tensor.data = copy.data();
    return copy;
  }
  json config_;
  model::TensorSet set_;
  std::list<std::vector<std::byte>> copies_;
  TempFolder folder_;
};

const json kGpt2 = {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_head", 2},
                    {"n_embd", 8},          {"n_positions", 6}, {"vocab_size", 11}};
const json kNeox = {{"model_type", "gpt_neox"},    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},    {"hidden_size", 16},
                    {"intermediate_size", 24},     {"vocab_size", 11},
                    {"max_position_embeddings", 8}};
const json kLlama = {{"model_type", "llama"},    {"num_hidden_layers", 2},
                     {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                     {"hidden_size", 16},        {"intermediate_size", 24},
                     {"vocab_size", 11},         {"max_position_embeddings", 8}};

TEST_F(OneThingChanged, NamesWithoutTheFamilysPrefixGiveTheSameModel) {
  for (const auto& [config, prefix] : std::vector<std::pair<json, std::string>>{
           {kGpt2, "transformer."}, {kNeox, "gpt_neox."}, {kLlama, "model."}}) {
    start(config);
    const std::string fingerprint = load().fingerprint;
    drop_prefix(prefix);
    EXPECT_EQ(load().fingerprint, fingerprint);
  }
}

TEST_F(OneThingChanged, BuffersAreIgnoredWhateverTheirTypeOrValue) {
  start(kGpt2);
  const std::string fingerprint = load().fingerprint;
  const float inf = HUGE_VALF;
  set_.tensors["transformer.h.0.attn.masked_bias"] = {
      "", DType::f32, {}, reinterpret_cast<const std::byte*>(&inf), 4};
  EXPECT_EQ(load().fingerprint, fingerprint);

  // The same in a file, with a mask of bytes as old checkpoints have it.
  set_.tensors.erase("transformer.h.0.attn.masked_bias");
  const float mask = 0;
  set_.tensors["transformer.h.0.attn.bias"] = {
      "", DType::f32, {1, 1, 1, 1}, reinterpret_cast<const std::byte*>(&mask), 4};
  model::save_folder(config_.dump(), set_.tensors, folder_.path());
  std::string file = read_all(folder_.path() / "model.safetensors");
  const std::size_t dtype = file.find("\"F32\"", file.find("transformer.h.0.attn.bias"));
  file.replace(dtype, 5, "\"U32\"");
  folder_.write("model.safetensors", file);
  EXPECT_EQ(model::load_folder(folder_.path()).fingerprint, fingerprint);
}

TEST_F(OneThingChanged, TheHeadOfGptNeoxMayBeNamedLmHead) {
  start(kNeox);
  const std::string fingerprint = load().fingerprint;
  rename("embed_out.weight", "lm_head.weight");
  EXPECT_EQ(load().fingerprint, fingerprint);
}

TEST_F(OneThingChanged, AHeadInTheFileIsUsedUnlessItRepeatsTheEmbedding) {
  start(kGpt2);
  model::StoredTensor head = set_.tensors["transformer.wte.weight"];
  set_.tensors["lm_head.weight"] = head;
  EXPECT_TRUE(load().config.tied_head);
  own("lm_head.weight")[0] ^= std::byte{1};
  const model::ModelWeights m = load();
  EXPECT_FALSE(m.config.tied_head);
  EXPECT_NE(m[model::Role::unembed].data, m[model::Role::embed].data);
}

TEST_F(OneThingChanged, AMissingHeadIsNamed) {
  start(kLlama);
  set_.tensors.erase("lm_head.weight");
  expect_mentions(input_error([&] { load(); }),
                  {"lm_head.weight", "[11, 16]", "tie_word_embeddings"});
  config_["tie_word_embeddings"] = true;
  EXPECT_TRUE(load().config.tied_head);
}

TEST_F(OneThingChanged, BiasesOfLlamaFollowTheConfig) {
  start(kLlama);
  EXPECT_FALSE(load().layers[0][model::Role::b_q]);
  json config = kLlama;
  config["attention_bias"] = config["mlp_bias"] = true;
  start(config);
  const model::ModelWeights m = load();
  const model::LayerWeights& l = m.layers[1];
  expect_shape(l[model::Role::b_q], 1, 16);
  expect_shape(l[model::Role::b_k], 1, 8);
  expect_shape(l[model::Role::b_v], 1, 8);
  expect_shape(l[model::Role::b_o], 1, 16);
  expect_shape(l[model::Role::b_in], 1, 24);
  expect_shape(l[model::Role::b_up], 1, 24);
  expect_shape(l[model::Role::b_out], 1, 16);
}

TEST_F(OneThingChanged, BiasesOfGptNeoxAttentionFollowTheConfig) {
  json config = kNeox;
  config["attention_bias"] = false;
  start(config);
  const model::ModelWeights m = load();
  EXPECT_FALSE(m.layers[0][model::Role::b_q]);
  EXPECT_FALSE(m.layers[0][model::Role::b_o]);
  EXPECT_TRUE(m.layers[0][model::Role::b_in]);
}

TEST_F(OneThingChanged, MistralLoadsAndKeepsItsWindow) {
  json config = kLlama;
  config["model_type"] = "mistral";
  config["head_dim"] = 6;
  start(config);
  const model::ModelWeights m = load();
  EXPECT_EQ(m.config.layer(1).window, 4096);
  expect_shape(m.layers[0][model::Role::w_q], 16, 24);
  expect_shape(m.layers[0][model::Role::w_k], 16, 12);
}

TEST_F(OneThingChanged, AMissingTensorIsNamedWithItsFileAndShape) {
  start(kGpt2);
  set_.tensors.erase("transformer.h.1.mlp.c_fc.weight");
  expect_mentions(input_error([&] { load_saved(); }),
                  {"model.safetensors", "transformer.h.1.mlp.c_fc.weight", "missing", "[8, 32]"});
}

TEST_F(OneThingChanged, AWrongShapeIsNamedWithWhatWasExpected) {
  start(kGpt2);
  config_["n_inner"] = 16;
  expect_mentions(input_error([&] { load_saved(); }),
                  {"model.safetensors", "transformer.h.0.mlp.c_fc.weight", "[8, 32]", "[8, 16]"});
}

TEST_F(OneThingChanged, ALayerTooManyInTheConfigIsAMissingTensor) {
  start(kGpt2);
  config_["n_layer"] = 3;
  expect_mentions(input_error([&] { load_saved(); }), {"transformer.h.2.", "missing"});
}

TEST_F(OneThingChanged, NanAndInfinityAreNamedWithTensorAndPlace) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const float bad : {NAN, -HUGE_VALF}) {
      start(kNeox, dtype);
      const char* name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight";
      tensor::store_run(&bad, 1, dtype, own(name).data() + 37 * tensor::dtype_size(dtype));
      expect_mentions(input_error([&] { load_saved(); }),
                      {"model.safetensors", name, "element 37", std::isnan(bad) ? "nan" : "-inf"});
    }
  }
}

TEST_F(OneThingChanged, QuantisedWeightsAreNamedWithTheirType) {
  start(kGpt2);
  model::save_folder(config_.dump(), set_.tensors, folder_.path());
  std::string file = read_all(folder_.path() / "model.safetensors");
  const std::size_t entry = file.find("transformer.h.0.attn.c_attn.weight");
  const std::size_t dtype = file.find("\"F32\"", entry);
  file.replace(dtype, 5, "\"I32\"");
  folder_.write("model.safetensors", file);
  expect_mentions(input_error([&] { model::load_folder(folder_.path()); }),
                  {"transformer.h.0.attn.c_attn.weight", "I32", "quantised"});
}

TEST_F(OneThingChanged, Float64IsRead) {
  start(kLlama, DType::f64);
  const model::ModelWeights m = load_saved();
  EXPECT_EQ(m.config.dtype, DType::f64);
  EXPECT_EQ(m.layers[0][model::Role::w_q].at(1, 2), load().layers[0][model::Role::w_q].at(1, 2));
}

TEST(LoadFolder, SaysWhatIsMissing) {
  const TempFolder folder;
  expect_mentions(input_error([&] { model::load_folder(folder.path() / "nowhere"); }),
                  {"nowhere", "no such folder"});
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }), {"no config.json"});
  folder.write("model.gguf", "x");
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }), {"GGUF"});
  folder.write("config.json", kGpt2.dump());
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }), {"GGUF", "safetensors"});
  fs::remove(folder.path() / "model.gguf");
  folder.write("pytorch_model.bin", "x");
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }),
                  {"pytorch_model.bin", "zip", "safetensors"});
}

TEST(LoadFolder, TakesMoreEndTokensFromTheGenerationConfig) {
  const TempFolder folder;
  json config = kLlama;
  config["eos_token_id"] = 2;
  const model::TensorSet set = model::random_tensors(config.dump(), 1);
  model::save_folder(config.dump(), set.tensors, folder.path());
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(model::load_folder(folder.path()).config.end_tokens, Ids{2});
  folder.write("generation_config.json", R"({"eos_token_id": [2, 9, 4000], "top_k": 5})");
  EXPECT_EQ(model::load_folder(folder.path()).config.end_tokens, (Ids{2, 9}));
  folder.write("generation_config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(model::load_folder(folder.path()).config.end_tokens, (Ids{2, 7}));
  for (const char* bad : {"{", "[]", R"({"eos_token_id": "end"})"}) {
    folder.write("generation_config.json", bad);
    expect_mentions(input_error([&] { model::load_folder(folder.path()); }),
                    {"generation_config.json"});
  }
}

TEST(LoadFolder, ATruncatedFileIsRefused) {
  const TempFolder folder;
  const model::TensorSet set = model::random_tensors(kGpt2.dump(), 1);
  model::save_folder(kGpt2.dump(), set.tensors, folder.path());
  const fs::path file = folder.path() / "model.safetensors";
  for (const std::uintmax_t size : {fs::file_size(file) - 1, fs::file_size(file) / 2,
                                    std::uintmax_t{100}, std::uintmax_t{3}, std::uintmax_t{0}}) {
    fs::resize_file(file, size);
    expect_mentions(input_error([&] { model::load_folder(folder.path()); }), {"model.safetensors"});
  }
}

TEST(LoadFolder, TrailingBytesAreAnError) {
  const TempFolder folder;
  const model::TensorSet set = model::random_tensors(kGpt2.dump(), 1);
  model::save_folder(kGpt2.dump(), set.tensors, folder.path());
  EXPECT_NO_THROW(model::load_folder(folder.path()));
  std::ofstream(folder.path() / "model.safetensors", std::ios::app) << "trailing";
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }),
                  {"8 bytes", "no tensor"});
}

TEST(Tables, FillEveryFieldThatTheConfigPromises) {
  for (const char* name : {"gpt2-small", "pythia-160m", "llama-3.2-1b", "qwen3-0.6b"}) {
    json config = json::parse(model::known_shape(name));
    for (const char* key : {"n_layer", "num_hidden_layers"}) {
      if (config.contains(key)) config[key] = 1;
    }
    for (const char* key : {"vocab_size"}) config[key] = 16;
    expect_shapes(model::random_weights(config.dump(), 1, DType::bf16));
  }
}

TEST(Tables, OfEveryFamilyFillWhatItsLayersPromise) {
  for (const std::string& family : testing::kFamilies) {
    for (const bool biases : {false, true}) {
      SCOPED_TRACE(family);
      testing::Shape shape;
      shape.family = family;
      shape.layers = 3;
      shape.biases = biases;
      shape.dense = 1;
      const model::ModelWeights m = model::random_weights(shape.config(), 1);
      expect_shapes(m);
      EXPECT_EQ(m.config.family, family);
    }
  }
}

}  // namespace
}  // namespace unpack
