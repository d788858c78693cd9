// Interventions against stored values, and against each other: the same change made in two ways.
#include "unpack/intervene.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "test_paths.h"
#include "unit/devices.h"
#include "unit/naive/forward.h"
#include "unit/random_model.h"
#include "unpack/error.h"

namespace unpack {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(UNPACK_TEST_DATA) / "golden";

nlohmann::json expected(const std::string& name) {
  std::ifstream in(kGolden / name / "expected.json");
  return nlohmann::json::parse(in);
}

Target target_of(const nlohmann::json& want) {
  Target target;
  target.ids = want["target_ids"].get<std::vector<TokenId>>();
  if (!want["versus_ids"].is_null()) target.versus = want["versus_ids"].get<std::vector<TokenId>>();
  return target;
}

// A prompt as long as `ids`, of other tokens.
std::vector<TokenId> corrupted(const Model& model, std::vector<TokenId> ids) {
  for (TokenId& id : ids) id = (id * 7 + 3) % model.config().vocab_size;
  return ids;
}

// The ways in which a layer's MLP reads.
std::vector<Branch> mlp_branches(const Model& model, int layer) {
  const LayerConfig& shape = model.config().layer(layer);
  if (shape.mixture()) return {Branch::R, Branch::G, Branch::U};
  return shape.gated() ? std::vector<Branch>{Branch::G, Branch::U}
                       : std::vector<Branch>{Branch::mlp};
}

// Every family on every device.
class GoldenInterventions
    : public testing::DeviceTest,
      public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {
 protected:
  GoldenInterventions()
      : DeviceTest(std::get<1>(GetParam())),
        want(expected(std::get<0>(GetParam()))),
        ids(want["ids"].get<std::vector<TokenId>>()) {}
  Model model() const { return Model::load((kGolden / std::get<0>(GetParam())).string(), load()); }

  const nlohmann::json want;
  const std::vector<TokenId> ids;
};
INSTANTIATE_TEST_SUITE_P(
    Families, GoldenInterventions,
    ::testing::Combine(::testing::Values("tiny-gpt2", "tiny-neox", "tiny-neox-sequential",
                                         "tiny-llama", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3",
                                         "tiny-olmo2", "tiny-phi3", "tiny-granite", "tiny-smollm3",
                                         "tiny-mixtral", "tiny-qwen3moe", "tiny-gptoss"),
                       ::testing::ValuesIn(testing::kDevices)),
    [](const auto& which) {
      return testing::test_name(std::get<0>(which.param) + "_" + std::get<1>(which.param));
    });

class Interventions : public testing::OnEveryDevice {
 protected:
  Model golden(const std::string& name) const {
    return Model::load((kGolden / name).string(), load());
  }
};
UNPACK_ON_EVERY_DEVICE(Interventions);

TEST_P(GoldenInterventions, CutsGiveTheStoredLossAndTarget) {
  const Model model = this->model();
  for (const auto& [writer, channels] : want["knockout"]["cut"].items()) {
    for (const auto& [channel, values] : channels.items()) {
      Intervention change;
      change.cut = writer;
      change.channel = channel == "mlp" ? Channel::mlp : Channel::attention;
      const InterventionResult got = intervene(model, ids, change, target_of(want));
      EXPECT_NEAR(got.clean.nll, want["knockout"]["clean"]["nll"].get<double>(), limit(1e-6, 1e-4));
      EXPECT_NEAR(got.cut.nll, values["nll"].get<double>(), limit(1e-6, 1e-4))
          << writer << " " << channel;
      EXPECT_NEAR(got.cut.target, values["target"].get<double>(), limit(1e-6, 1e-4))
          << writer << " " << channel;
    }
  }
}

TEST_P(GoldenInterventions, ManyCutsAtOnceGiveWhatEachGivesAlone) {
  const Model model = this->model();
  const std::vector<std::vector<TokenId>> prompts = {ids, corrupted(model, ids)};
  std::vector<Cut> cuts;
  for (int w = 0; w < model.writers().count(); ++w)
    cuts.push_back({w, w % 2 ? Channel::attention : Channel::mlp});
  const auto losses = knockout_losses(model, prompts, cuts);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      Intervention change;
      change.cut = model.writers().name(cuts[i].writer);
      change.channel = cuts[i].channel;
      const InterventionResult alone = intervene(model, prompts[p], change);
      EXPECT_NEAR(losses[0][p], alone.clean.nll, limit(1e-9, 1e-4));
      EXPECT_NEAR(losses[i + 1][p], alone.cut.nll, limit(1e-9, 1e-4)) << *change.cut;
    }
  }
}

// Whether what is no writer's part of the stream is another one in another prompt: biases behind a
// norm, and those of experts.
bool constants_vary(const Model& model) {
  for (const model::LayerWeights& layer : testing::weights_of(model).layers) {
    if (layer[model::Role::attn_post_w] && layer[model::Role::b_o]) return true;
    if (!layer.experts.empty() && layer.experts[0][model::Role::b_out]) return true;
  }
  return false;
}

// Everything a head of the last layer reads, taken from another prompt, makes its output that of
// the other prompt; where a norm stands behind them, all heads together.
TEST_P(GoldenInterventions, PatchingAllThatAHeadReadsPatchesWhatItWrites) {
  const Model model = this->model();
  if (constants_vary(model)) GTEST_SKIP() << "the streams differ in more than their writers";
  const auto other = corrupted(model, ids);
  const Writers& writers = model.writers();
  const int last = model.config().n_layers - 1;
  const int p = static_cast<int>(ids.size()) - 1;
  // With grouped heads and without: the last head.
  const int first = model.config().layer(last).attn_post_norm ? 0 : model.config().n_heads - 1;
  std::vector<Edge> reads, writes;
  for (int h = first; h < model.config().n_heads; ++h) {
    const Node head{writers.head(last, h), p};
    for (int w = 0; w < writers.visible_to_attention(last); ++w) {
      reads.push_back({{w, p}, Branch::Q, head});
      for (int s = model.config().layer(last).first_source(p); s <= p; ++s) {
        reads.push_back({{w, s}, Branch::K, head});
        reads.push_back({{w, s}, Branch::V, head});
      }
    }
    writes.push_back({head, Branch::none, std::nullopt});
    if (model.config().block != Block::sequential) continue;
    for (const Branch b : mlp_branches(model, last))
      writes.push_back({head, b, Node{writers.mlp(last), p}});
  }
  const std::vector<double> got =
      patched_targets(model, ids, other, {reads, writes, {}}, target_of(want));
  EXPECT_NEAR(got[0], got[1], limit(1e-9, 1e-4));
  EXPECT_GT(std::fabs(got[0] - got[2]), limit(1e-9, 1e-3)) << "the patch must change something";
}

TEST_P(GoldenInterventions, PatchingAllThatAnMlpReadsPatchesWhatItWrites) {
  const Model model = this->model();
  if (constants_vary(model)) GTEST_SKIP() << "the streams differ in more than their writers";
  const auto other = corrupted(model, ids);
  const Writers& writers = model.writers();
  const int last = model.config().n_layers - 1;
  const int p = static_cast<int>(ids.size()) - 1;
  const Node mlp{writers.mlp(last), p};
  std::vector<Edge> reads;
  for (int w = 0; w < writers.visible_to_mlp(last); ++w) {
    for (const Branch b : mlp_branches(model, last)) reads.push_back({{w, p}, b, mlp});
  }
  const std::vector<double> got = patched_targets(
      model, ids, other, {reads, {{mlp, Branch::none, std::nullopt}}}, target_of(want));
  EXPECT_NEAR(got[0], got[1], limit(1e-9, 1e-4));
}

TEST_P(Interventions, AnEdgePatchedFromThePromptItselfChangesNothing) {
  const Model model = golden("tiny-gpt2");
  const auto ids = expected("tiny-gpt2")["ids"].get<std::vector<TokenId>>();
  Intervention change;
  change.edges = {"MLP0@0 -[K]-> A1.H1@2"};
  change.patch_from = ids;
  const InterventionResult got = intervene(model, ids, change);
  EXPECT_NEAR(got.clean.nll, got.cut.nll, limit(1e-9, 1e-5));
}

TEST_P(Interventions, ZeroedEmbeddingsAreTheSameInABatchAndAlone) {
  const Model model = golden("tiny-llama");
  const auto ids = expected("tiny-llama")["ids"].get<std::vector<TokenId>>();
  const auto logits = zeroed_logits(model, ids, {{}, {1}, {1, 2}}, -1);
  Intervention change;
  change.zero = {1, 2};
  const InterventionResult got = intervene(model, ids, change);
  const auto probability = [&](const std::vector<double>& row) {
    double sum = 0;
    for (const double x : row) sum += std::exp(x);
    return std::exp(row[got.target.ids[0]]) / sum;
  };
  EXPECT_NEAR(probability(logits[0]), got.clean.probability, limit(1e-9, 1e-5));
  EXPECT_NEAR(probability(logits[2]), got.cut.probability, limit(1e-9, 1e-5));
  EXPECT_NE(logits[1], logits[2]);
}

TEST_P(Interventions, GiveEveryStoredCut) {
  int cuts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    const std::string name = entry.path().filename().string();
    if (!std::filesystem::exists(entry.path() / "expected.json")) continue;
    const nlohmann::json want = expected(name);
    if (!want.contains("knockout")) continue;  // a prompt of one token has no loss
    const Model model = golden(name);
    const auto ids = want["ids"].get<std::vector<TokenId>>();
    for (const auto& [writer, channels] : want["knockout"]["cut"].items()) {
      for (const auto& [channel, values] : channels.items()) {
        ++cuts;
        Intervention change;
        change.cut = writer;
        change.channel = channel == "mlp" ? Channel::mlp : Channel::attention;
        const InterventionResult got = intervene(model, ids, change, target_of(want));
        const double nll = values["nll"], target = values["target"];
        EXPECT_NEAR(got.cut.nll, nll, limit(1e-6, 1e-4) * std::max(1.0, std::fabs(nll)))
            << name << " " << writer << " " << channel;
        EXPECT_NEAR(got.cut.target, target, limit(1e-6, 1e-4) * std::max(1.0, std::fabs(target)))
            << name << " " << writer << " " << channel;
      }
    }
  }
  EXPECT_GT(cuts, device().starts_with("cuda") ? 50 : 150);
}

// What an intervention reports, of a plain pass.
struct Plain {
  double nll = 0, target = 0, size = 0;

  Plain(const naive::Forward& f, const std::vector<TokenId>& ids, TokenId token, TokenId versus) {
    for (std::size_t s = 0; s + 1 < ids.size(); ++s) {
      double sum = 0;
      const auto capped = [&](double z) {
        return f.c.logit_cap > 0 ? f.c.logit_cap * std::tanh(z / f.c.logit_cap) : z;
      };
      for (const double z : f.logits[s]) sum += std::exp(capped(z));
      nll += std::log(sum) - capped(f.logits[s][ids[s + 1]]);
    }
    target = f.logits.back()[token] - f.logits.back()[versus];
    for (const double z : f.logits.back()) size = std::max({size, 1.0, std::fabs(z)});
  }
};

TEST_P(Interventions, CutsAreThoseOfPlainLoopsInEveryFamily) {
  EXPECT_TRUE(rc::check(device(), [this] {
    const testing::Shape shape = testing::draw_shape(3, 3, 6);
    RC_LOG(shape.config());
    const Model model =
        testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device());
    std::vector<TokenId> ids = testing::draw_prompt(7, shape.vocabulary);
    ids.push_back(2);  // a loss needs two tokens
    const naive::Forward clean(testing::weights_of(model), ids);
    const int writer = testing::draw_int(0, model.writers().count());
    const bool mlps = *rc::gen::arbitrary<bool>();
    const naive::Forward cut(testing::weights_of(model), ids,
                             {&clean.vectors[writer], writer, mlps});
    RC_PRE(std::min(clean.routing_margin, cut.routing_margin) > limit(1e-9, 1e-3));
    Intervention change;
    change.cut = model.writers().name(writer);
    change.channel = mlps ? Channel::mlp : Channel::attention;
    Target target;
    target.ids = {1};
    target.versus = std::vector<TokenId>{4};
    const InterventionResult got = intervene(model, ids, change, target);
    const Plain want_clean(clean, ids, 1, 4), want(cut, ids, 1, 4);
    const double slack = limit(1e-9, 1e-4);
    RC_ASSERT(std::fabs(got.clean.nll - want_clean.nll) <= slack * (1 + want_clean.nll));
    RC_ASSERT(std::fabs(got.clean.target - want_clean.target) <= slack * want_clean.size);
    RC_ASSERT(std::fabs(got.cut.nll - want.nll) <= slack * (1 + want.nll));
    RC_ASSERT(std::fabs(got.cut.target - want.target) <= slack * want.size);
  }));
}

// Where the heads after it write nothing, freezing them changes nothing; where they write, it does.
TEST_P(Interventions, FrozenHeadsWriteWhatTheyWrote) {
  for (const char* family : {"gpt2", "gpt_neox", "llama"}) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 3;
    const std::vector<TokenId> ids = {1, 2, 3, 4}, other = {5, 6, 7, 8};
    for (const bool silent : {true, false}) {
      testing::Tensors tensors = testing::random_tensors_of(shape.config(), 11);
      for (auto& [name, values] : tensors.values) {
        const bool output = name.find("attn.c_proj.weight") != std::string::npos ||
                            name.find("attention.dense.weight") != std::string::npos ||
                            name.find("o_proj.weight") != std::string::npos;
        if (silent && output && name.find(".0.") == std::string::npos)
          std::fill(values.begin(), values.end(), 0.0F);
      }
      const Model model = tensors.model(device());
      const int head = model.writers().head(0, 1);
      std::vector<Edge> edges = {{{head, 3}, Branch::none, std::nullopt}};
      for (int l = 0; l < shape.layers; ++l) {
        if (head >= model.writers().visible_to_mlp(l)) continue;
        for (const Branch b : mlp_branches(model, l))
          edges.push_back({{head, 3}, b, Node{model.writers().mlp(l), 3}});
      }
      Target target;
      target.ids = {1};
      const double moving = patched_targets(model, ids, other, {edges}, target)[0];
      const double frozen =
          patched_targets(model, ids, other, {edges}, target, {}, PatchRoute::heads_frozen)[0];
      const double clean =
          patched_targets(model, ids, other, {{}}, target, {}, PatchRoute::heads_frozen)[0];
      EXPECT_GT(std::fabs(frozen - clean), limit(1e-6, 1e-3)) << family;
      if (silent) {
        EXPECT_NEAR(frozen, moving, limit(1e-9, 1e-4)) << family;
      } else {
        EXPECT_GT(std::fabs(frozen - moving), limit(1e-6, 1e-3)) << family;
      }
    }
  }
}

// All that the first layer's MLP reads at a position comes from the other prompt, so that it writes
// what it writes there: a path through it carries as much as an edge from it.
TEST_P(Interventions, APathThroughAnMlpCarriesWhatTheMlpWouldWrite) {
  for (const char* family : {"gpt2", "gpt_neox", "llama", "mixtral"}) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 3;
    const std::vector<TokenId> ids = {1, 2, 3, 4}, other = {5, 6, 7, 8};
    const Model model = testing::random_tensors_of(shape.config(), 11).model(device());
    const Writers& writers = model.writers();
    Target target;
    target.ids = {1};
    const Node head{writers.head(1, 1), 3};
    for (const auto& [branch, position] :
         {std::pair{Branch::Q, 3}, std::pair{Branch::K, 1}, std::pair{Branch::V, 2}}) {
      std::vector<Edge> below, all;
      for (int w = 0; w < writers.visible_to_attention(1); ++w) {
        all.push_back({{w, position}, branch, head});
        if (w < writers.visible_to_mlp(0)) below.push_back(all.back());
      }
      // A parallel block's MLP does not see its heads: these stand beside it.
      for (int h = 0; h < shape.heads; ++h) {
        if (writers.head(0, h) >= writers.visible_to_mlp(0))
          below.push_back({{writers.head(0, h), position}, branch, head});
      }
      const double through =
          patched_targets(model, ids, other, {below}, target, {}, PatchRoute::through_mlps)[0];
      const std::vector<double> direct =
          patched_targets(model, ids, other, {all, below, {}}, target);
      EXPECT_NEAR(through, direct[0], limit(1e-9, 1e-5)) << family << to_string(branch);
      EXPECT_GT(std::fabs(through - direct[1]), limit(1e-7, 2e-5)) << family << to_string(branch);
      EXPECT_GT(std::fabs(through - direct[2]), limit(1e-7, 2e-5)) << family << to_string(branch);
    }
  }
}

TEST_P(Interventions, APathWithNoMlpBetweenIsAnEdge) {
  testing::Shape shape;
  shape.layers = 3;
  const std::vector<TokenId> ids = {1, 2, 3, 4}, other = {5, 6, 7, 8};
  const Model model = testing::random_tensors_of(shape.config(), 11).model(device());
  const Writers& writers = model.writers();
  Target target;
  target.ids = {1};
  const std::vector<std::vector<Edge>> patches = {
      {{{writers.mlp(0), 3}, Branch::Q, Node{writers.head(1, 0), 3}}},
      {{{writers.mlp(1), 2}, Branch::V, Node{writers.head(2, 1), 3}}}};
  const std::vector<double> through = patched_targets(model, ids, other, patches, target, {},
                                                      PatchRoute::through_mlps),
                            direct = patched_targets(model, ids, other, patches, target);
  for (std::size_t i = 0; i < patches.size(); ++i)
    EXPECT_NEAR(through[i], direct[i], limit(1e-9, 1e-4)) << i;
}

// Copies that begin alike share rows; here each is computed by itself.
TEST_P(Interventions, ManyZeroedCopiesGiveWhatEachGivesAlone) {
  EXPECT_TRUE(rc::check(device(), [this] {
    const testing::Shape shape = testing::draw_shape(3, 3, 6);
    const Model model = testing::random_tensors_of(shape.config(), 3).model(device());
    const std::vector<TokenId> ids = testing::draw_prompt(7, shape.vocabulary);
    const int length = static_cast<int>(ids.size());
    std::vector<std::vector<int>> sets(1);
    for (int i = testing::draw_int(0, 9); i > 0; --i) {
      sets.emplace_back();
      for (int s = 0; s < length; ++s) {
        if (*rc::gen::arbitrary<bool>())
          sets.back().push_back(*rc::gen::arbitrary<bool>() ? s : s - length);
      }
    }
    const int position = testing::draw_int(-length, length);
    const auto got = zeroed_logits(model, ids, sets, position);
    RC_ASSERT(got.size() == sets.size());
    for (std::size_t i = 0; i < sets.size(); ++i) {
      for (TokenId id = 0; id < shape.vocabulary; id += 3) {
        Target target{{id}, {}, true, position};
        Intervention change;
        change.zero = sets[i];
        const double want = sets[i].empty()
                                ? model.prepare(ids).trace({target, {}, {}, {}}).target.logit
                                : intervene(model, ids, change, target).cut.target;
        RC_ASSERT(std::fabs(got[i][id] - want) <= limit(1e-9, 1e-4) * (1 + std::fabs(want)));
      }
    }
  }));
}

TEST(Edges, AreReadAndWrittenInOneForm) {
  const Model model = Model::load((kGolden / "tiny-gpt2").string());
  const int length = 5;
  for (const std::string text :
       {"A0.H1@2 -[K]-> A1.H0@4", "MLP0@3 -> MLP1@3", "emb@4 -> target", "pos@1 -[V]-> A0.H0@1"}) {
    EXPECT_EQ(to_string(model.writers(), parse_edge(model.writers(), model.config(), text, length)),
              text);
  }
}

TEST(Edges, ThatCannotExistAreErrors) {
  const Model model = Model::load((kGolden / "tiny-gpt2").string());
  for (const std::string text :
       {"A1.H1@2 -[K]-> A0.H0@4", "A0.H1@3 -[K]-> A1.H0@2", "A0.H1@2 -[Q]-> A1.H0@4",
        "A0.H1@2 -> A1.H0@2", "A0.H1@2 -[K]-> MLP1@2", "MLP0@1 -[K]-> emb@1", "MLP0@1",
        "MLP0@1 -[X]-> A1.H0@2", "MLP0@9 -> target"}) {
    EXPECT_THROW(parse_edge(model.writers(), model.config(), text, 5), InputError) << text;
  }
}

}  // namespace
}  // namespace unpack
