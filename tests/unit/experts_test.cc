// Which experts a token used, what reports show of it, and speed paths that these families cannot
// take.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/plan.h"
#include "engine/state.h"
#include "model/load.h"
#include "report/graph_layout.h"
#include "unit/resident.h"
#include "unpack/batch.h"
#include "unpack/model.h"
#include "unpack/prepared.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using nlohmann::json;

json config(const std::string& family, int layers = 3) {
  return {{"model_type", family},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 4},
          {"hidden_size", 8},
          {"intermediate_size", 6},
          {"vocab_size", 13},
          {"max_position_embeddings", 32},
          {"tie_word_embeddings", false},
          {"num_local_experts", 5},
          {"num_experts", 5},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 6},
          {"norm_topk_prob", true}};
}

Model made(const json& c, const std::string& device = "reference") {
  LoadOptions options;
  options.device = device;
  options.threads = 1;
  return Model::random(c.dump(), 5, options);
}

const std::vector<TokenId> kIds = {1, 7, 3, 12, 0};

TEST(Experts, OfEveryTokenAreThoseOfPlainLoops) {
  const Model model = made(config("mixtral"));
  PredictOptions options;
  options.experts = true;
  const PredictResult result = model.predict(kIds, options);
  const Prepared prepared = model.prepare(kIds);
  ASSERT_EQ(result.experts.size(), 3U);
  const model::ModelWeights& weights = *engine::state_of(model)->weights;
  for (int l = 0; l < 3; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    const CachedArray x = prepared.cache("resid_mid", l);
    ASSERT_EQ(result.experts[layer].size(), kIds.size());
    for (std::size_t s = 0; s < kIds.size(); ++s) {
      double square = 0;
      for (std::size_t d = 0; d < 8; ++d) square += x.values[s * 8 + d] * x.values[s * 8 + d] / 8;
      std::vector<std::pair<double, int>> logits;
      for (int e = 0; e < 5; ++e) {
        double sum = 0;
        for (std::size_t d = 0; d < 8; ++d) {
          const auto i = static_cast<std::int64_t>(d);
          sum += x.values[s * 8 + d] / std::sqrt(square + 1e-5) *
                 weights.layers[layer][model::Role::mlp_norm_w].at(0, i) *
                 weights.layers[layer][model::Role::w_r].at(i, e);
        }
        logits.emplace_back(-sum, e);
      }
      std::sort(logits.begin(), logits.end());
      const double second = std::exp(logits[0].first - logits[1].first);
      const std::vector<ExpertUse>& used = result.experts[layer][s];
      ASSERT_EQ(used.size(), 2U);
      EXPECT_EQ(used[0].expert, logits[0].second);
      EXPECT_EQ(used[1].expert, logits[1].second);
      EXPECT_NEAR(used[0].weight, 1 / (1 + second), 1e-9);
      EXPECT_NEAR(used[1].weight, second / (1 + second), 1e-9);
    }
  }
}

TEST(Experts, AreEmptyForDenseLayersAndAnErrorForDenseModels) {
  json c = config("qwen3_moe");
  c["mlp_only_layers"] = {1};
  PredictOptions options;
  options.experts = true;
  const PredictResult result = made(c).predict(kIds, options);
  ASSERT_EQ(result.experts.size(), 3U);
  EXPECT_TRUE(result.experts[1].empty());
  EXPECT_EQ(result.experts[2].size(), kIds.size());
  EXPECT_THROW((void)made(config("llama")).predict(kIds, options), InputError);
}

// A pass that keeps one layer's arrays for all of them must forget the router of the layer before.
TEST(Experts, OfOneLayerDoNotReachIntoADenseOneBehindIt) {
  json c = config("qwen3_moe");
  c["mlp_only_layers"] = {1, 2};
  const Model model = made(c);
  PredictOptions keeps;
  keeps.lens = true;
  const PredictResult a = model.predict(kIds), b = model.predict(kIds, keeps);
  for (std::size_t i = 0; i < a.predictions.size(); ++i)
    EXPECT_NEAR(a.predictions[i].logit, b.predictions[i].logit, 1e-12);
}

TEST(Experts, ThatNoTokenUsesTakeNoMemoryOfTheDevice) {
  json c = config("mixtral", 1);
  c.update({{"hidden_size", 128}, {"intermediate_size", 1024}, {"num_local_experts", 64}});
  const Model model = made(c, "cpu");
  const double all = 64 * 3 * 128 * 1024 * 4.0 / (1 << 20);
  const double before = testing::resident_mib();
  (void)model.predict(std::vector<TokenId>{1});
  EXPECT_LT(testing::resident_mib() - before, all / 4);
}

TEST(WeightProducts, AreLeftOutWithALineWhereTheyWouldNotHold) {
  for (const char* family : {"gemma2", "gemma3_text", "olmo2", "mixtral", "qwen3_moe", "gpt_oss"}) {
    json c = config(family);
    if (std::string(family) == "olmo2") c.erase("head_dim"), c["num_key_value_heads"] = 2;
    const Model plain = made(c, "cpu");
    std::vector<std::string> lines;
    LoadOptions options;
    options.device = "cpu";
    options.threads = 1;
    options.weight_products = true;
    options.notice = [&](const std::string& line) { lines.push_back(line); };
    const Model asked = plain.with(options);
    ASSERT_EQ(lines.size(), 1U) << family;
    EXPECT_NE(lines[0].find("weight_products is left out"), std::string::npos) << lines[0];
    EXPECT_FALSE(engine::state_of(asked)->options.weight_products);
    Question question;
    question.target.ids = {2};
    const TraceResult a = plain.prepare(kIds).trace(question),
                      b = asked.prepare(kIds).trace(question);
    EXPECT_EQ(a.token_credit, b.token_credit) << family;
    EXPECT_FALSE(products_pay(plain, 1000)) << family;
  }
  EXPECT_TRUE(weight_product_obstacle(made(config("llama")).config()).empty());
}

TraceResult traced(std::optional<std::string> root = {}, int layers = 3) {
  Question question;
  question.target.ids = {2};
  question.root = std::move(root);
  question.paths.top = 60;
  return made(config("mixtral", layers)).prepare(kIds).trace(question);
}

TEST(MixtureReports, NameTheExpertsOfEveryLayer) {
  const TraceResult r = traced();
  const json trace = json::parse(to_json(r));
  ASSERT_EQ(trace["experts"].size(), 3U);
  const ExpertUse& first = r.experts[2].back().front();
  EXPECT_EQ(trace["experts"][2][0]["expert"], first.expert);
  EXPECT_EQ(trace["experts"][2][0]["weight"], first.weight);
  const std::string shown = fmt::format("{} {:.0f}%, ", first.expert, 100 * first.weight);
  EXPECT_NE(to_svg(r).find(shown), std::string::npos);
  EXPECT_NE(to_svg(r).find("experts at position 4"), std::string::npos);
  EXPECT_NE(to_html(r).find(shown), std::string::npos);
  EXPECT_NE(to_tikz(r).find("Experts of layer"), std::string::npos);

  PredictOptions options;
  options.experts = true;
  const PredictResult p = made(config("mixtral")).predict(kIds, options);
  const json predicted = json::parse(to_json(p));
  ASSERT_EQ(predicted["experts"].size(), 3U);
  ASSERT_EQ(predicted["experts"][0].size(), kIds.size());
  EXPECT_EQ(predicted["experts"][0][1][0]["expert"], p.experts[0][1][0].expert);
  const std::string text = to_terminal(p, {});
  EXPECT_NE(text.find(fmt::format("L2: {} {:.0f}%, ", first.expert, 100 * first.weight)),
            std::string::npos)
      << text;
}

TEST(MixtureReports, OfARootNameExpertAndNeuron) {
  const TraceResult r = traced("MLP1@-1");
  const json entries = json::parse(to_json(r))["entries"];
  EXPECT_TRUE(entries["neurons"][0].contains("expert"));
  ASSERT_EQ(entries["experts"].size(), 2U);
  double weight = 0, credit = 0, neurons = 0;
  for (const ExpertEntry& e : r.expert_entries) weight += e.weight, credit += e.credit;
  for (const NeuronEntry& e : r.neuron_entries) neurons += e.credit;
  EXPECT_NEAR(weight, 1, 1e-12);
  EXPECT_NEAR(credit, neurons, 1e-12);
  ASSERT_TRUE(r.composition.contains(Branch::R));
  const std::string text = to_terminal(r, {});
  EXPECT_NE(text.find("Experts of MLP1@4"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  R "), std::string::npos) << text;
}

TEST(MixtureReports, DrawTheRouterBetweenGateAndUp) {
  const TraceResult r = traced({}, 1);
  const report::GraphLayout g = report::layout_graph(r);
  bool any = false;
  for (const report::GraphBox& box : g.boxes) {
    if (box.ports.size() != 3 || std::string(box.ports[0].branch) != "G") continue;
    EXPECT_STREQ(box.ports[1].branch, "R");
    EXPECT_STREQ(box.ports[2].branch, "U");
    EXPECT_NEAR(box.ports[1].x - box.ports[0].x, 15, 1e-9);
    any = true;
  }
  EXPECT_TRUE(any);
  EXPECT_NE(to_graph(r, GraphFormat::dot).find("branch=\"R\""), std::string::npos);
  EXPECT_NE(to_graph(r, GraphFormat::graphml).find("<data key=\"branch\">R</data>"),
            std::string::npos);
}

TEST(Paths, OfBranchRAreThoseThatTheRouterReads) {
  const Prepared prepared = made(config("mixtral", 2)).prepare(std::vector<TokenId>{1, 7, 3});
  Question question;
  question.target.ids = {2};
  question.root = "MLP1@-1";
  question.paths.top = 100000;
  const TraceResult all = prepared.trace(question);
  ASSERT_LT(all.paths.size(), question.paths.top);
  question.paths.branch = Branch::R;
  const TraceResult router = prepared.trace(question);
  std::size_t counted = 0;
  for (const Path& path : all.paths) counted += path.branches.back() == Branch::R ? 1 : 0;
  EXPECT_GT(counted, 0U);
  EXPECT_EQ(router.paths.size(), counted);
  for (const Path& path : router.paths) EXPECT_EQ(path.branches.back(), Branch::R);
}

TEST(Plan, OfAMixtureCountsTheExpertsInUse) {
  const ModelConfig c = model::parse_config(model::known_shape("mixtral-8x7b"), "mixtral-8x7b");
  const double attention = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024, router = 4096.0 * 8,
               expert = 3.0 * 4096 * 14336, head = 32000.0 * 4096;
  const double pairs = 16 * 17 / 2.0;
  EXPECT_DOUBLE_EQ(engine::forward_cost(c, 16).flop,
                   32 * (2 * 16 * (attention + router + 2 * expert) + 4 * pairs * 4096) + 2 * head);
  EXPECT_DOUBLE_EQ(engine::forward_cost(c, 16).byte,
                   4 * (32 * (attention + router + 8 * expert) + head));
  EXPECT_DOUBLE_EQ(engine::forward_cost(c, 1).byte,
                   4 * (32 * (attention + router + 2 * expert) + head));
}

TEST(Plan, OfAWindowCountsTheSourcesThatAreSeen) {
  ModelConfig c = model::parse_config(model::known_shape("llama-3.2-1b"), "llama-3.2-1b");
  const double full = engine::forward_cost(c, 100).flop;
  for (LayerConfig& layer : c.layers) layer.window = 10;
  const double unseen = 100 * 101 / 2.0 - (10 * 11 / 2.0 + 90 * 10);
  EXPECT_DOUBLE_EQ(full - engine::forward_cost(c, 100).flop, 16 * 4 * unseen * 2048);
}

TEST(KnownShapes, HaveThePublishedNumberOfParameters) {
  const auto billions = [](const char* name) {
    const ModelConfig c = model::parse_config(model::known_shape(name), name);
    double count = static_cast<double>(c.vocab_size) * c.d_model * (c.tied_head ? 1 : 2);
    for (const LayerConfig& l : c.layers) {
      count += 2.0 * c.d_model * c.d_head * (c.n_heads + c.n_kv_heads);
      count += 3.0 * c.d_model * l.n_neurons * std::max(1, l.n_experts);
    }
    return count / 1e9;
  };
  EXPECT_NEAR(billions("gemma-2-2b"), 2.61, 0.01);
  EXPECT_NEAR(billions("gemma-3-4b"), 3.88, 0.01);
  EXPECT_NEAR(billions("olmo-2-7b"), 7.30, 0.01);
  EXPECT_NEAR(billions("phi-3-mini"), 3.82, 0.01);
  EXPECT_NEAR(billions("mixtral-8x7b"), 46.70, 0.01);
  EXPECT_NEAR(billions("qwen3-30b-a3b"), 30.53, 0.02);
  EXPECT_NEAR(billions("gpt-oss-20b"), 20.91, 0.02);
}

TEST(Families, ThatAreNotSupportedSayWhatTheyHave) {
  const auto message = [](const std::string& type) {
    try {
      (void)model::parse_config(json{{"model_type", type}}.dump(), "config.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [type, part] :
       {std::pair("qwen2_moe", "shared experts"), std::pair("deepseek_v3", "latent attention"),
        std::pair("jamba", "state-space layers"), std::pair("mamba", "state-space layers"),
        std::pair("rwkv", "recurrent layers")}) {
    EXPECT_NE(message(type).find(part), std::string::npos) << message(type);
    EXPECT_NE(message(type).find("supported: gpt2"), std::string::npos) << message(type);
  }
  EXPECT_NE(message("bloom").find("model family 'bloom' is not supported (supported"),
            std::string::npos)
      << message("bloom");
}

}  // namespace
}  // namespace unpack
