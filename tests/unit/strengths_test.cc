// The scores that knockouts are held against, beside loops that follow their definitions reader by
// reader.
#include "experiments/strengths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/naive/forward.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

using naive::Mat;
using naive::Vec;

double length_of(const Vec& x) { return std::sqrt(naive::dot(x, x)); }

// Key scores of one writer for a head and query, [s <= q].
Vec key_scores(const naive::Forward& f, int l, int h, int q, int writer) {
  const naive::Layer& t = f.layers[l];
  const int g = f.group(h);
  Vec out;
  for (int s = 0; s <= q; ++s) {
    Vec key = naive::part(naive::times(f.read(f.vectors[writer][s], t.dev1[s], t.norm1_w), t.w_k),
                          g * f.c.d_head, f.c.d_head);
    for (int e = 0; e < f.c.d_head && !t.k_norm.empty(); ++e) key[e] *= t.k_norm[e] / t.k_dev[g][s];
    out.push_back(naive::dot(t.q[h][q], f.rotated(key, s)) /
                  std::sqrt(static_cast<double>(f.c.d_head)));
  }
  return out;
}

std::map<std::string, Vec> slow_strengths(const naive::Forward& f) {
  std::map<std::string, Vec> out;
  for (const char* name : kStrengths) out[name].assign(f.writers.count(), 0.0);
  for (int w = 0; w < f.writers.count(); ++w) {
    for (int s = 0; s < f.S; ++s) out["size"][w] += length_of(f.center(f.vectors[w][s]));
    for (int l = 0; l < f.c.n_layers; ++l) {
      const naive::Layer& t = f.layers[l];
      for (int h = 0; h < f.c.n_heads && w < f.writers.visible_to_attention(l); ++h) {
        for (int q = 0; q < f.S; ++q) {
          const Vec scores = key_scores(f, l, h, q, w);
          double mean = 0, variance = 0;
          for (const double x : scores) mean += x / (q + 1);
          for (const double x : scores) variance += (x - mean) * (x - mean) / (q + 1);
          out["attention"][w] += std::sqrt(variance);
          out["attention_signed"][w] += std::fabs(mean);
        }
      }
      for (int g = 0; g < f.c.n_kv_heads && w < f.writers.visible_to_attention(l); ++g) {
        for (int s = 0; s < f.S; ++s) {
          const Vec value =
              naive::part(naive::times(f.read(f.vectors[w][s], t.dev1[s], t.norm1_w), t.w_v),
                          g * f.c.d_head, f.c.d_head);
          out["attention_values"][w] += std::fabs(naive::dot(value, t.v[g][s]));
        }
      }
      if (w >= f.writers.visible_to_mlp(l)) continue;
      Vec mean(f.c.d_mlp, 0.0);
      for (int q = 0; q < f.S; ++q) {
        const Vec scores = naive::times(f.read(f.vectors[w][q], t.dev2[q], t.norm2_w), t.w_in);
        out["mlp"][w] += length_of(scores);
        for (int n = 0; n < f.c.d_mlp; ++n) mean[n] += scores[n] / f.S;
      }
      out["mlp_signed"][w] += f.S * length_of(mean);
    }
  }
  return out;
}

TEST(Strengths, AreThoseOfTheDefinitionInEveryFamily) {
  const std::vector<TokenId> ids = {3, 1, 4, 1, 5, 9};
  for (const char* family : {"gpt2", "gpt_neox", "gpt_neox sequential", "llama", "qwen3"}) {
    testing::Shape shape;
    shape.layers = 3;
    shape.family = std::string(family).substr(0, std::string(family).find(' '));
    shape.parallel = family == std::string("gpt_neox");
    shape.rope = 1;
    const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 5);
    std::vector<std::string> devices = testing::float_devices();
    devices.emplace_back("reference");
    for (const std::string& device : devices) {
      const Model model = tensors.model(device, 2);
      const std::map<std::string, Vec> want =
          slow_strengths(naive::Forward(testing::weights_of(model), ids));
      const Json got = strengths(model.prepare(ids), {});
      EXPECT_EQ(got.size(), want.size());
      for (const auto& [name, values] : want) {
        EXPECT_LT(naive::difference(got.at(name).get<Vec>(), values),
                  device == "reference" ? 1e-10 : 1e-4)
            << family << " " << device << " " << name;
      }
      // A mean is never larger than what it is the mean of, and here it is smaller: scores of both
      // signs meet.
      EXPECT_LT(want.at("mlp_signed")[0], 0.95 * want.at("mlp")[0]) << family;
    }
  }
}

}  // namespace
}  // namespace unpack
