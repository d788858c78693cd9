// Families that are other ones in disguise: the same weights under other names and in other forms.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "unit/devices.h"
#include "unit/family_files.h"
#include "unit/naive/compare.h"

namespace unpack {
namespace {

using nlohmann::json;
using test::TempFolder;
using testing::File;
using testing::gpt_oss;
using testing::kIds;
using testing::on;
using testing::Tensors;
using testing::tensors_of;
using testing::trace_of;

class FamilyForms : public testing::OnHost {};
UNPACK_ON_HOST(FamilyForms);

TEST_P(FamilyForms, FusedMatricesOfPhi3AreThoseOfALlama) {
  testing::Shape shape;
  shape.family = "phi3";
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.rope = 1;
  const Tensors fused = tensors_of(shape, 3);
  json config = json::parse(shape.config());
  config["model_type"] = "llama";
  config["rms_norm_eps"] = 1e-5;
  Tensors split;
  split.config = config.dump();
  const auto cut = [&](const std::string& from, const std::string& to, std::int64_t row,
                       std::int64_t rows) {
    const std::int64_t width = fused.shapes.at(from)[1];
    const auto begin = fused.values.at(from).begin() + row * width;
    split.values[to].assign(begin, begin + rows * width);
    split.shapes[to] = {rows, width};
  };
  for (const auto& [name, values] : fused.values) {
    const std::string stem = name.substr(0, name.rfind('.', name.size() - 8) + 1);
    if (name.ends_with("qkv_proj.weight")) {
      cut(name, stem + "q_proj.weight", 0, 16);
      cut(name, stem + "k_proj.weight", 16, 8);
      cut(name, stem + "v_proj.weight", 24, 8);
    } else if (name.ends_with("gate_up_proj.weight")) {
      cut(name, stem + "gate_proj.weight", 0, shape.neurons);
      cut(name, stem + "up_proj.weight", shape.neurons, shape.neurons);
    } else {
      split.values[name] = values;
      split.shapes[name] = fused.shapes.at(name);
    }
  }
  EXPECT_EQ(trace_of(fused.model(GetParam(), 2)).node_credit,
            trace_of(split.model(GetParam(), 2)).node_credit);
}

TEST_P(FamilyForms, AWindowAsLongAsThePromptIsNone) {
  for (const char* family : {"mistral", "gemma2", "gpt_oss", "smollm3"}) {
    testing::Shape shape;
    shape.family = family;
    Tensors tensors = tensors_of(shape, 3);
    const TraceResult none = trace_of(tensors.model(GetParam(), 2));
    shape.window = static_cast<int>(kIds.size());
    tensors.config = shape.config();
    EXPECT_LT(
        naive::difference(trace_of(tensors.model(GetParam(), 2)).node_credit, none.node_credit),
        limit(1e-12, 1e-5))
        << family;
    shape.window = 1;
    tensors.config = shape.config();
    EXPECT_GT(
        naive::difference(trace_of(tensors.model(GetParam(), 2)).node_credit, none.node_credit),
        1e-3)
        << family << ": a window of 1 changes something";
  }
}

TEST(Gemma3Files, MayHaveBothPrefixesAndAVisionPart) {
  testing::Shape shape;
  shape.family = "gemma3";
  for (const bool tied : {true, false}) {
    shape.tied = tied;
    const Tensors tensors = tensors_of(shape, 3);
    const TraceResult want = trace_of(tensors.model("reference"));
    for (const std::string& prefix : {std::string("language_model."), std::string("model.")}) {
      File file;
      for (const auto& [name, values] : tensors.values) {
        std::string as = name;
        if (prefix == "language_model.") {
          as = prefix + name;
        } else if (name.starts_with("model.")) {
          as = "model.language_model." + name.substr(6);
        }
        file.add(tensors, name, as);
      }
      const float pixel = NAN;
      file.add("vision_tower.embeddings.weight", "F32", {1}, &pixel, 4);
      file.add("multi_modal_projector.scale", "I64", {0}, &pixel, 0);
      const TempFolder folder;
      file.write(folder, tensors.config);
      const Model model = Model::load(folder.path().string(), on("reference"));
      EXPECT_EQ(trace_of(model).node_credit, want.node_credit) << prefix << tied;
    }
  }
}

TEST(FamilyViews, ApplyScalesAndShiftsWhereTheyBelong) {
  const auto stored = [](const Tensors& t, const std::string& name, std::size_t i) {
    return static_cast<double>(t.values.at(name)[i]);
  };
  testing::Shape shape;
  shape.family = "gemma2";
  shape.tied = true;
  const Tensors gemma = tensors_of(shape, 1);
  const Model model = gemma.model("reference");
  const model::ModelWeights& m = testing::weights_of(model);
  const double root = std::sqrt(static_cast<double>(shape.d_model));
  const std::string layer = "model.layers.1.";
  EXPECT_DOUBLE_EQ(m[model::Role::embed].at(2, 3),
                   root * stored(gemma, "model.embed_tokens.weight", 2 * 8 + 3));
  EXPECT_EQ(m[model::Role::unembed].at(2, 3),
            stored(gemma, "model.embed_tokens.weight", 2 * 8 + 3));
  EXPECT_EQ(m[model::Role::final_norm_w].at(0, 4), 1 + stored(gemma, "model.norm.weight", 4));
  for (const auto& [role, name] :
       {std::pair{model::Role::attn_norm_w, "input_layernorm"},
        std::pair{model::Role::attn_post_w, "post_attention_layernorm"},
        std::pair{model::Role::mlp_norm_w, "pre_feedforward_layernorm"},
        std::pair{model::Role::mlp_post_w, "post_feedforward_layernorm"}})
    EXPECT_EQ(m.layers[1][role].at(0, 4), 1 + stored(gemma, layer + name + ".weight", 4)) << name;

  shape.family = "granite";
  shape.biases = true;
  const Tensors granite = tensors_of(shape, 1);
  const Model scaled = granite.model("reference");
  const model::ModelWeights& g = testing::weights_of(scaled);
  EXPECT_DOUBLE_EQ(g[model::Role::embed].at(2, 3),
                   3 * stored(granite, "model.embed_tokens.weight", 2 * 8 + 3));
  EXPECT_DOUBLE_EQ(g.layers[1][model::Role::w_o].at(2, 3),
                   0.4 * stored(granite, layer + "self_attn.o_proj.weight", 3 * 8 + 2));
  EXPECT_DOUBLE_EQ(g.layers[1][model::Role::b_o].at(0, 3),
                   0.4 * stored(granite, layer + "self_attn.o_proj.bias", 3));
  EXPECT_DOUBLE_EQ(g.layers[1][model::Role::w_out].at(2, 3),
                   0.4 * stored(granite, layer + "mlp.down_proj.weight", 3 * 6 + 2));
  EXPECT_EQ(g.layers[1][model::Role::w_q].at(2, 3),
            stored(granite, layer + "self_attn.q_proj.weight", 3 * 8 + 2));

  const testing::Shape oss = gpt_oss(3, 2);
  const Tensors t = tensors_of(oss, 1);
  const Model mixture = t.model("reference");
  const model::RoleViews& expert = testing::weights_of(mixture).layers[1].experts[2];
  const int D = oss.d_model, N = oss.neurons;
  const std::string in = layer + "mlp.experts.gate_up_proj";
  for (const int n : {0, 3}) {
    const std::size_t at = static_cast<std::size_t>(((2 * D + 5) * 2 * N) + 2 * n);
    EXPECT_EQ(expert[model::Role::w_in].at(5, n), stored(t, in, at));
    EXPECT_EQ(expert[model::Role::w_up].at(5, n), stored(t, in, at + 1));
    EXPECT_EQ(expert[model::Role::b_up].at(0, n),
              stored(t, in + "_bias", static_cast<std::size_t>(2 * 2 * N + 2 * n + 1)));
    EXPECT_EQ(
        expert[model::Role::w_out].at(n, 5),
        stored(t, layer + "mlp.experts.down_proj", static_cast<std::size_t>((2 * N + n) * D + 5)));
  }
}

}  // namespace
}  // namespace unpack
