#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <optional>

#include "model/load.h"
#include "unit/weights_files.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using test::expect_mentions;
using test::input_error;
using test::TempFolder;

constexpr const char* kConfig = R"({"model_type":"gpt2"})";
constexpr const char* kCommit = "607a30d783dfa663caf39e06633721c8d4cfcd7e";
constexpr const char* kOther = "11c5a3d5811f50298f278a704980280950aedb10";

class Locate : public ::testing::Test {
 protected:
  void SetUp() override {
    set("HF_HUB_CACHE", nullptr);
    set("HF_HOME", nullptr);
    set("HOME", (folder_.path() / "home").c_str());
    set("UNPACK_MODELS", (folder_.path() / "bundle").c_str());
  }
  void TearDown() override {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  void set(const char* name, const char* value) {
    const char* old = ::getenv(name);
    before_.try_emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  // A model in the layout of the Hugging Face cache.
  void cache(const fs::path& hub, const std::string& repository, const std::string& commit,
             const std::string& ref) {
    folder_.write(hub / repository / "snapshots" / commit / "config.json", kConfig);
    if (!ref.empty()) folder_.write(hub / repository / "refs" / ref, commit + "\n");
  }
  fs::path at(const fs::path& inner) const { return folder_.path() / inner; }
  TempFolder folder_;
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(Locate, FindsAFolder) {
  folder_.write("model/config.json", kConfig);
  EXPECT_EQ(locate_model(at("model").string()), at("model"));
}

TEST_F(Locate, ExplainsAFolderThatIsNoModel) {
  folder_.write("empty/readme", "");
  folder_.write("llama/llama.gguf", "");
  expect_mentions(input_error([&] { locate_model(at("empty").string()); }),
                  {"empty", "no config.json"});
  EXPECT_EQ(locate_model(at("llama").string()), at("llama/llama.gguf"));
  expect_mentions(input_error([&] { locate_model(at("empty/readme").string()); }),
                  {"is a file", "folder", "gguf"});
}

TEST_F(Locate, FindsANameOfTheCacheThroughItsRef) {
  cache("home/.cache/huggingface/hub", "models--org--name", kCommit, "main");
  cache("home/.cache/huggingface/hub", "models--org--name", kOther, "step1000");
  const fs::path snapshots = at("home/.cache/huggingface/hub/models--org--name/snapshots");
  EXPECT_EQ(locate_model("org/name"), snapshots / kCommit);
  EXPECT_EQ(locate_model("org/name@main"), snapshots / kCommit);
  EXPECT_EQ(locate_model("org/name@step1000"), snapshots / kOther);
  EXPECT_EQ(locate_model(std::string("org/name@") + kOther), snapshots / kOther);
  EXPECT_EQ(locate_model("org/name@11c5a3d"), snapshots / kOther);
}

TEST_F(Locate, FindsANameWithoutAnOrganisation) {
  cache("home/.cache/huggingface/hub", "models--gpt2", kCommit, "main");
  EXPECT_EQ(locate_model("gpt2").filename(), kCommit);
}

TEST_F(Locate, PrefersTheCachesThatTheEnvironmentNames) {
  cache("home/.cache/huggingface/hub", "models--org--name", "aaaa", "main");
  EXPECT_EQ(locate_model("org/name").filename(), "aaaa");
  cache("hf/hub", "models--org--name", "bbbb", "main");
  set("HF_HOME", at("hf").c_str());
  EXPECT_EQ(locate_model("org/name").filename(), "bbbb");
  cache("own", "models--org--name", "cccc", "main");
  set("HF_HUB_CACHE", at("own").c_str());
  EXPECT_EQ(locate_model("org/name").filename(), "cccc");
}

TEST_F(Locate, ARevisionThatIsNotThereIsAnsweredWithThoseThatAre) {
  cache("home/.cache/huggingface/hub", "models--org--name", kCommit, "step5");
  expect_mentions(input_error([] { locate_model("org/name@step6"); }),
                  {"step6", "step5", kCommit, "download"});
  EXPECT_EQ(locate_model("org/name").filename(), kCommit) << "the only snapshot there is";
  cache("home/.cache/huggingface/hub", "models--org--name", kOther, "");
  expect_mentions(input_error([] { locate_model("org/name"); }), {"main"});
}

TEST_F(Locate, AShortHashMustBeUnambiguous) {
  cache("home/.cache/huggingface/hub", "models--org--name", "abcd1", "main");
  cache("home/.cache/huggingface/hub", "models--org--name", "abcd2", "");
  expect_mentions(input_error([] { locate_model("org/name@abcd"); }), {"abcd", "2 snapshots"});
}

TEST_F(Locate, ASnapshotWithoutConfigIsExplained) {
  folder_.write("home/.cache/huggingface/hub/models--org--name/snapshots/abcd/pytorch_model.bin",
                "");
  folder_.write("home/.cache/huggingface/hub/models--org--name/refs/main", "abcd");
  expect_mentions(input_error([] { locate_model("org/name"); }), {"no config.json"});
}

TEST_F(Locate, ARevisionDoesNotLeadOutOfTheCache) {
  cache("home/.cache/huggingface/hub", "models--org--name", kCommit, "main");
  folder_.write("home/.cache/huggingface/hub/models--org--name/refs/evil", "../../../../../..");
  input_error([] { locate_model("org/name@evil"); });
  input_error([] { locate_model("org/name@../refs/main"); });
}

TEST_F(Locate, FindsBundledModels) {
  for (const char* name : {"pocket-gpt2", "pocket-neox", "pocket-llama"}) {
    EXPECT_TRUE(fs::exists(locate_model(name) / "config.json")) << "from the source tree";
  }
  folder_.write("bundle/pocket-gpt2/config.json", kConfig);
  EXPECT_EQ(locate_model("pocket-gpt2"), at("bundle/pocket-gpt2"));
}

TEST_F(Locate, AnUnknownNameIsAnsweredWithWhereItLooked) {
  folder_.write("bundle/mine/config.json", kConfig);
  set("HF_HOME", at("hf").c_str());
  expect_mentions(input_error([] { locate_model("no-such-model"); }),
                  {"no-such-model", at("bundle").string(), at("hf/hub").string(),
                   at("home/.cache/huggingface/hub").string(), "pocket-gpt2", "mine"});
  expect_mentions(input_error([] { locate_model("../escape"); }), {"not found"});
  input_error([] { locate_model(""); });
  input_error([] { locate_model(std::string("a\0b", 3)); });
}

// A folder whose weights are so many layers of half precision, and an embedding; the file is
// sparse.
void write_layers(const TempFolder& folder, const fs::path& name, int layers, std::uint64_t each,
                  std::uint64_t embedding, const char* matrix = "mlp.c_fc") {
  std::string header = "{";
  std::uint64_t end = 0;
  const auto tensor = [&](const std::string& called, std::uint64_t n) {
    header += fmt::format(R"("{}":{{"dtype":"F16","shape":[{}],"data_offsets":[{},{}]}},)", called,
                          n, end, end + 2 * n);
    end += 2 * n;
  };
  tensor("wte.weight", embedding);
  for (int l = 0; l < layers; ++l) tensor(fmt::format("h.{}.{}.weight", l, matrix), each);
  header.back() = '}';
  const std::string bytes = test::safetensors_bytes(header, "");
  folder.write(name / "config.json",
               R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":8,"n_positions":16,)"
               R"("vocab_size":10,"layer_norm_epsilon":1e-5})");
  folder.write(name / "model.safetensors", bytes);
  fs::resize_file(folder.path() / name / "model.safetensors", bytes.size() + end);
}

TEST_F(Locate, CountsTheStoredWeightsAndWhatIsPackedOfThem) {
  constexpr std::uint64_t kSmall = 1000, kLarge = std::uint64_t{1} << 29, kEmbedding = 400;
  write_layers(folder_, "more/small", 3, kSmall, kEmbedding);
  write_layers(folder_, "more/large", 4, kLarge, kEmbedding);
  const auto memory = [&](const char* name) {
    for (const FoundModel& model : list_models({at("more")})) {
      if (model.folder.filename() != name) continue;
      EXPECT_EQ(model.problem, "");
      return model.memory;
    }
    return std::uint64_t{0};
  };
  // All layers stay packed in single precision, beside the stored form.
  EXPECT_EQ(memory("small"), 2 * (3 * kSmall + kEmbedding) + 4 * 3 * kSmall);
  // Eight GiB would be too many: they are read as they are stored.
  EXPECT_EQ(memory("large"), 2 * (4 * kLarge + kEmbedding));
  // Of a mixture, four GiB of experts stay packed.
  write_layers(folder_, "more/mixture", 4, kLarge, kEmbedding, "mlp.experts.0.up");
  EXPECT_EQ(memory("mixture"), 2 * (4 * kLarge + kEmbedding) + (std::uint64_t{4} << 30));
  // Quantised ones are never packed; the scale beside them counts as a number.
  constexpr std::uint64_t kWeights = 64 * 32;
  folder_.write("more/quantised/config.json",
                R"({"model_type":"llama","num_hidden_layers":1,"num_attention_heads":2,)"
                R"("hidden_size":32,"intermediate_size":64,"max_position_embeddings":16,)"
                R"("vocab_size":10,"rms_norm_eps":1e-5,"quantization_config":)"
                R"({"quant_method":"fp8"}})");
  folder_.write("more/quantised/model.safetensors",
                test::safetensors_bytes(
                    R"({"model.layers.0.mlp.up_proj.weight":{"dtype":"F8_E4M3","shape":[64,32],)"
                    R"("data_offsets":[0,2048]},"model.layers.0.mlp.up_proj.weight_scale_inv":)"
                    R"({"dtype":"F32","shape":[1],"data_offsets":[2048,2052]}})",
                    std::string(kWeights + 4, '\0')));
  EXPECT_EQ(memory("quantised"), kWeights + 4 + 4);
}

TEST_F(Locate, ListsWhatIsThereAndWhatIsWrongWithIt) {
  cache("home/.cache/huggingface/hub", "models--org--name", kCommit, "main");
  cache("home/.cache/huggingface/hub", "models--org--name", kOther, "step1");
  folder_.write("more/phi/config.json", R"({"model_type":"phi"})");
  folder_.write("more/broken/config.json", "{");
  folder_.write("more/nothing/readme", "");
  const std::vector<FoundModel> models = list_models({at("more")});
  const auto find = [&](const std::string& name) {
    const auto it = std::find_if(models.begin(), models.end(),
                                 [&](const FoundModel& m) { return m.name == name; });
    EXPECT_NE(it, models.end()) << name;
    return it == models.end() ? FoundModel{} : *it;
  };
  EXPECT_EQ(find("pocket-gpt2").origin, "bundled");
  EXPECT_EQ(find("pocket-gpt2").problem, "");
  EXPECT_EQ(find("pocket-llama").family, "llama");
  EXPECT_EQ(find("org/name").origin, "cache");
  expect_mentions(find("org/name").problem, {"no weights"});
  EXPECT_EQ(find("org/name@step1").folder.filename(), kOther);
  EXPECT_EQ(find(at("more/phi").string()).origin, "folder");
  EXPECT_EQ(find(at("more/phi").string()).family, "phi");
  expect_mentions(find(at("more/phi").string()).problem, {"phi", "not supported"});
  expect_mentions(find(at("more/broken").string()).problem, {"not valid JSON"});
  EXPECT_EQ(std::count_if(models.begin(), models.end(),
                          [](const FoundModel& m) { return m.name == "pocket-gpt2"; }),
            1);
  expect_mentions(input_error([&] { list_models({at("nowhere")}); }), {"nowhere"});
}

}  // namespace
}  // namespace unpack
