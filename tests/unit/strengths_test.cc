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

// Key scores of one writer for a head and query, over the sources in sight.
Vec key_scores(const naive::Forward& f, int l, int h, int q, int writer) {
  const naive::Layer& t = f.layers[l];
  const int g = f.group(h);
  Vec out;
  for (int s = f.first(l, q); s <= q; ++s) {
    out.push_back(f.c.layer(l).attention_scale *
                  naive::dot(t.q[h][q], f.key(l, g, f.vectors[writer][s], s)));
  }
  return out;
}

std::map<std::string, Vec> slow_strengths(const naive::Forward& f) {
  std::map<std::string, Vec> out;
  for (const char* name : experiments::kStrengths) out[name].assign(f.writers.count(), 0.0);
  for (int w = 0; w < f.writers.count(); ++w) {
    for (int s = 0; s < f.S; ++s) out["size"][w] += length_of(f.center(f.vectors[w][s]));
    for (int l = 0; l < f.c.n_layers; ++l) {
      const naive::Layer& t = f.layers[l];
      for (int h = 0; h < f.c.n_heads && w < f.writers.visible_to_attention(l); ++h) {
        for (int q = 0; q < f.S; ++q) {
          const Vec scores = key_scores(f, l, h, q, w);
          double mean = 0, variance = 0;
          const auto n = static_cast<double>(scores.size());
          for (const double x : scores) mean += x / n;
          for (const double x : scores) variance += (x - mean) * (x - mean) / n;
          out["attention"][w] += std::sqrt(variance);
          out["attention_signed"][w] += std::fabs(mean);
        }
      }
      for (int g = 0; g < f.c.n_kv_heads && w < f.writers.visible_to_attention(l); ++g) {
        for (int s = 0; s < f.S; ++s) {
          const Vec value =
              naive::part(naive::times(f.read_attention(l, f.vectors[w][s], s), t.w_v),
                          g * f.c.d_head, f.c.d_head);
          out["attention_values"][w] += std::fabs(naive::dot(value, t.v[g][s]));
        }
      }
      if (w >= f.writers.visible_to_mlp(l)) continue;
      // Of the experts that a position uses.
      const int N = f.c.layer(l).n_neurons;
      Vec mean(t.experts.size() * N, 0.0);
      for (int q = 0; q < f.S; ++q) {
        Vec scores(mean.size(), 0.0);
        for (const int e : t.chosen[q]) {
          const Vec own = naive::times(f.read_mlp(l, f.vectors[w][q], q), t.experts[e].w_in);
          std::copy(own.begin(), own.end(), scores.begin() + e * N);
        }
        out["mlp"][w] += length_of(scores);
        for (std::size_t n = 0; n < mean.size(); ++n) mean[n] += scores[n] / f.S;
      }
      out["mlp_signed"][w] += f.S * length_of(mean);
    }
  }
  return out;
}

TEST(Strengths, AreThoseOfTheDefinitionInEveryFamily) {
  const std::vector<TokenId> ids = {3, 1, 4, 1, 5, 9};
  std::vector<std::string> families = testing::kFamilies;
  families.emplace_back("gpt_neox sequential");
  for (const std::string& family : families) {
    testing::Shape shape;
    shape.layers = 3;
    shape.family = family.substr(0, family.find(' '));
    shape.parallel = family == "gpt_neox";
    shape.rope = 1;
    shape.window = 3;
    const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 5);
    std::vector<std::string> devices = testing::float_devices();
    devices.emplace_back("reference");
    for (const std::string& device : devices) {
      const Model model = tensors.model(device, 2);
      const std::map<std::string, Vec> want =
          slow_strengths(naive::Forward(testing::weights_of(model), ids));
      const experiments::Json got = experiments::strengths(model.prepare(ids), {});
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
