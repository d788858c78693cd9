// Every fast way gives what the plain one gives: weight products, folded and projected scores, kept
// and streamed tables.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "backend/mlp_readers.h"
#include "unit/devices.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

std::vector<double> downloaded(backend::Backend& backend, const backend::Array& array) {
  std::vector<double> out(static_cast<std::size_t>(array.size()));
  backend.download(array, 0, out);
  return out;
}

double worst(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, size = 1e-30;
  for (const double x : want) size = std::max(size, std::fabs(x));
  for (std::size_t i = 0; i < want.size(); ++i)
    error = std::max(error, std::fabs(got.at(i) - want[i]) / size);
  return error;
}

TEST(WeightProducts, ChangeNothingButTheRounding) {
  for (const char* device : {"reference", "cpu"}) {
    EXPECT_TRUE(rc::check(device, [&] {
      testing::Shape shape = testing::draw_shape(3, 4, 300);
      shape.neurons = testing::draw_int(1, 300);  // more than one panel, too
      shape.context = 40;
      RC_LOG(shape.config());
      const testing::Tensors tensors =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000));
      std::vector<TokenId> ids;
      const int length = testing::draw_int(1, 36);
      for (int i = 0; i < length; ++i) ids.push_back(testing::draw_int(0, shape.vocabulary - 1));
      LoadOptions options;
      options.device = device;
      options.threads = 2;
      const Prepared plain = tensors.model(options).prepare(ids);
      options.weight_products = true;
      const Prepared fast = tensors.model(options).prepare(ids);
      const double limit = options.device == "cpu" ? 2e-5 : 1e-12;
      const decompose::Decomposition& a = *engine::state_of(plain)->decomposition;
      const decompose::Decomposition& b = *engine::state_of(fast)->decomposition;
      for (int l = 0; l < shape.layers; ++l) {
        for (const auto& [side, branch] : backend::mlp_readers(a.config().layer(l))) {
          RC_ASSERT(worst(downloaded(b.backend(), b.mlp(l, side).sum),
                          downloaded(a.backend(), a.mlp(l, side).sum)) < limit);
          RC_ASSERT(worst(downloaded(b.backend(), b.mlp(l, side).abs),
                          downloaded(a.backend(), a.mlp(l, side).abs)) < limit);
          RC_ASSERT(worst(downloaded(b.backend(), b.mlp(l, side).l2),
                          downloaded(a.backend(), a.mlp(l, side).l2)) < limit);
        }
      }
    }));
  }
}

// The reference multiplies every writer as it is; the CPU makes products of weights for a prompt
// that is long enough, and adds keys and queries up without a table. More than two blocks of
// queries, and windows that begin within one.
TEST(WeightProducts, MadeAsNeededGiveTheSumsOfTheReference) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 3;
    shape.context = 160;
    const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 3);
    std::vector<TokenId> ids;
    for (int i = 0; i < 140; ++i) ids.push_back((i * i + 3 * i) % shape.vocabulary);
    RunContext context;
    context.memory_budget = 0;
    const Prepared plain = tensors.model("reference").prepare(ids, context);
    const Prepared fast = tensors.model("cpu").prepare(ids, context);
    const decompose::Decomposition& a = *engine::state_of(plain)->decomposition;
    const decompose::Decomposition& b = *engine::state_of(fast)->decomposition;
    const auto error = [&](const backend::Array& got, const backend::Array& want) {
      return worst(downloaded(b.backend(), got), downloaded(a.backend(), want));
    };
    for (int l = 0; l < shape.layers; ++l) {
      for (const auto& [side, branch] : backend::mlp_readers(a.config().layer(l))) {
        EXPECT_LT(error(b.mlp(l, side).sum, a.mlp(l, side).sum), 5e-5) << family << l;
        EXPECT_LT(error(b.mlp(l, side).abs, a.mlp(l, side).abs), 5e-5) << family << l;
        EXPECT_LT(error(b.mlp(l, side).l2, a.mlp(l, side).l2), 5e-5) << family << l;
      }
      const backend::AttentionSums& got = b.attention(l, Scores::raw);
      const backend::AttentionSums& want = a.attention(l, Scores::raw);
      for (const auto& field : {&backend::AttentionSums::k_sum, &backend::AttentionSums::k_abs,
                                &backend::AttentionSums::q_sum, &backend::AttentionSums::q_abs,
                                &backend::AttentionSums::k_std, &backend::AttentionSums::k_mean,
                                &backend::AttentionSums::v_sum, &backend::AttentionSums::v_abs}) {
        EXPECT_LT(error(got.*field, want.*field), 1e-4) << family << l;
      }
    }
  }
}

// Neurons of the last layer are summed at the position of a target alone; for all positions where
// somebody asks.
TEST(LastNeurons, AtOnePositionAreThoseOfAll) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.neurons = 300;  // more than one panel
    shape.context = 90;
    const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 8);
    std::vector<TokenId> ids;
    for (int i = 0; i < 80; ++i) ids.push_back((i * i + 5 * i) % shape.vocabulary);
    for (const char* device : {"reference", "cpu"}) {
      const Prepared prepared = tensors.model(device).prepare(ids);
      const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
      const int last = shape.layers - 1;
      EXPECT_FALSE(d.neurons_when_asked(0)) << family;
      EXPECT_EQ(d.neurons_when_asked(last), !shape.mixture()) << family;
      if (!d.neurons_when_asked(last)) continue;
      for (const auto& [side, branch] : backend::mlp_readers(d.config().layer(last))) {
        for (const int query : {0, 41, 79, 41}) {
          const backend::MlpSums& all = d.mlp(last, side);
          const backend::MlpSums one = d.mlp_at(last, side, query);
          const auto row = [&](const backend::Array& from) {
            const std::int64_t n = from.size() / 80;
            return downloaded(d.backend(), d.backend().slice(from, query * n, n));
          };
          const double limit = std::string(device) == "cpu" ? 2e-5 : 1e-12;
          EXPECT_LT(worst(downloaded(d.backend(), one.sum), row(all.sum)), limit) << family;
          EXPECT_LT(worst(downloaded(d.backend(), one.abs), row(all.abs)), limit) << family;
          EXPECT_LT(worst(downloaded(d.backend(), one.l2), row(all.l2)), limit) << family;
        }
      }
    }
  }
}

// Bounds and masses of a long prompt are taken without its key scores.
TEST(LongPrompts, HaveThePathsOfTheReference) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.context = 160;
    const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 5);
    std::vector<TokenId> ids;
    for (int i = 0; i < 100; ++i) ids.push_back((i * i + i) % shape.vocabulary);
    RunContext context;
    context.memory_budget = 0;
    Question question;
    question.options = preset_options("paper");
    question.paths.top = 10;
    const TraceResult want =
        tensors.model("reference").prepare(ids, context).trace(question, context);
    const TraceResult got = tensors.model("cpu").prepare(ids, context).trace(question, context);
    EXPECT_NEAR(got.coverage.absolute_total, want.coverage.absolute_total,
                1e-3 * want.coverage.absolute_total)
        << family;
    ASSERT_EQ(got.paths.size(), want.paths.size()) << family;
    for (std::size_t i = 0; i < got.paths.size(); ++i)
      EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                  1e-3 * std::fabs(want.paths[0].credit))
          << family << ' ' << i;
  }
}

TEST(WeightProducts, GiveTheSameBitsOnAnyNumberOfThreads) {
  testing::Shape shape;
  shape.context = 160;
  const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 4);
  std::vector<TokenId> ids;
  for (int i = 0; i < 150; ++i) ids.push_back(i * 7 % shape.vocabulary);
  std::vector<std::vector<double>> seen;
  for (const int threads : {1, 3}) {
    LoadOptions options;
    options.device = "cpu";
    options.threads = threads;
    RunContext context;
    context.memory_budget = 0;
    const Prepared prepared = tensors.model(options).prepare(ids, context);
    const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
    std::vector<double> all;
    for (int l = 0; l < shape.layers; ++l) {
      const backend::AttentionSums& sums = d.attention(l, Scores::raw);
      for (const backend::Array* part :
           {&sums.k_sum, &sums.k_abs, &sums.k_std, &sums.q_sum, &sums.q_abs,
            &d.mlp(l, backend::MlpSide::gate).abs, &d.mlp(l, backend::MlpSide::gate).l2}) {
        const auto some = downloaded(d.backend(), *part);
        all.insert(all.end(), some.begin(), some.end());
      }
    }
    seen.push_back(all);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(WeightProducts, AreLeftOutInOneLineWhereAModelHasNone) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    std::vector<std::string> lines;
    LoadOptions options;
    options.device = "cpu";
    options.weight_products = true;
    options.notice = [&](const std::string& line) { lines.push_back(line); };
    const Model model = testing::random_tensors_of(shape.config(), 1).model(options);
    const LayerConfig& layer = model.config().layer(0);
    ASSERT_EQ(lines.size(), layer.post_norm() || layer.mixture() ? 1U : 0U) << family;
    if (!lines.empty()) {
      EXPECT_NE(lines[0].find("weight_products is left out"), std::string::npos) << lines[0];
    }
  }
}

TEST(WeightProducts, ThatAreTooLargeAreRefused) {
  const testing::Tensors tensors = testing::random_tensors_of(testing::Shape{}.config(), 1);
  LoadOptions options;
  options.weight_products = true;
  options.product_limit = 100;
  EXPECT_THROW(
      {
        try {
          (void)tensors.model(options);
        } catch (const InputError& error) {
          EXPECT_NE(std::string(error.what()).find("weight products"), std::string::npos)
              << error.what();
          throw;
        }
      },
      InputError);
}

// Short prompts fold, long ones project, and what is asked for one head and query alone is computed
// in a third way.
class ScoresOnEveryDevice : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(ScoresOnEveryDevice);

TEST_P(ScoresOnEveryDevice, OfALayerAreThoseOfEachHeadAndQuery) {
  EXPECT_TRUE(rc::check(device(), [this] {
    testing::Shape shape = testing::draw_shape(2, 4, 9);
    shape.context = 48;
    RC_LOG(shape.config());
    const Model model =
        testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device());
    std::vector<TokenId> ids;
    const int length = testing::draw_int(1, 44);
    for (int i = 0; i < length; ++i) ids.push_back(testing::draw_int(0, shape.vocabulary - 1));
    for (const std::size_t budget : {std::size_t{0}, std::size_t{1} << 30}) {
      RunContext context;
      context.memory_budget = budget;
      const Prepared prepared = model.prepare(ids, context);
      const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
      for (const Scores scores : {Scores::raw, Scores::centered}) {
        for (int l = 0; l < shape.layers; ++l) {
          const backend::AttentionSums& sums = d.attention(l, scores);
          const backend::AttentionView view = d.attention_view(l);
          const auto k_sum = downloaded(d.backend(), sums.k_sum),
                     k_abs = downloaded(d.backend(), sums.k_abs);
          const auto q_sum = downloaded(d.backend(), sums.q_sum),
                     q_abs = downloaded(d.backend(), sums.q_abs);
          const auto deviation = downloaded(d.backend(), d.moments(l).k_std);
          std::vector<double> want_k, want_k_abs, want_q, want_q_abs, want_deviation;
          for (int h = 0; h < d.config().n_heads; ++h) {
            for (int q = 0; q < length; ++q) {
              backend::Array key = d.backend().zeros((q + 1) * view.visible),
                             query = d.backend().zeros((q + 1) * view.visible),
                             raw = d.backend().zeros(key.size());
              d.backend().key_scores(view, scores, h, q, key);
              d.backend().query_scores(view, scores, h, q, query);
              d.backend().key_scores(view, Scores::raw, h, q, raw);
              const auto k = downloaded(d.backend(), key), qs = downloaded(d.backend(), query),
                         r = downloaded(d.backend(), raw);
              for (int s = 0; s <= q; ++s) {
                want_k.push_back(0), want_k_abs.push_back(0), want_q.push_back(0),
                    want_q_abs.push_back(0);
                for (int j = 0; j < view.visible; ++j) {
                  const auto i = static_cast<std::size_t>(s * view.visible + j);
                  want_k.back() += k[i], want_k_abs.back() += std::fabs(k[i]);
                  want_q.back() += qs[i], want_q_abs.back() += std::fabs(qs[i]);
                }
              }
              for (int j = 0; j < view.visible; ++j) {
                double mean = 0, square = 0;
                const int first = d.config().layer(l).first_source(q), n = q + 1 - first;
                for (int s = first; s <= q; ++s) mean += r[s * view.visible + j] / n;
                for (int s = first; s <= q; ++s)
                  square += std::pow(r[s * view.visible + j] - mean, 2) / n;
                want_deviation.push_back(std::sqrt(square));
              }
            }
          }
          RC_ASSERT(worst(k_abs, want_k_abs) < limit(1e-11, 1e-4));
          RC_ASSERT(worst(k_sum, want_k) < limit(1e-9, 1e-3));
          RC_ASSERT(worst(q_abs, want_q_abs) < limit(1e-11, 1e-4));
          RC_ASSERT(worst(q_sum, want_q) < limit(1e-9, 1e-3));
          RC_ASSERT(worst(deviation, want_deviation) < limit(1e-7, 1e-3));
        }
      }
    }
  }));
}

}  // namespace
}  // namespace unpack
