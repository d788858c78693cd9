// The engine against a second program that follows the definition node by node (naive/recursion.h),
// on random tiny models of every family.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "unit/devices.h"
#include "unit/filter.h"
#include "unit/naive/compare.h"
#include "unit/naive/recursion.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

using naive::Difference;
using naive::Mat;
using naive::Vec;

// What the second program answers to a question.
struct Expected {
  Vec importance, token_credit, stage1;
  Mat node_credit;
  std::map<Branch, Mat> incoming;
  std::map<Branch, std::map<int, std::pair<double, double>>>
      composition;  // branch -> writer -> mass, credit
  double conditioning = 0;
  double left = 1;  // the largest token credit over what met at tokens, by its size

  // A relative rounding error of eps in every product becomes one of eps / conditioning in a share,
  // and one of eps / (conditioning * left) in token credit.
  double token_conditioning() const { return conditioning * left; }
};

Expected expected_of(const naive::Forward& f, const Question& question) {
  const Target& t = question.target;
  const Vec direction = naive::Recursion::target_direction(f, t.position, t.ids, t.versus, t.raw);
  naive::Recursion recursion(f, question.options, direction);
  Expected out;
  Mat sizes;
  if (!question.root) {
    out.importance = recursion.importance(t.position);
    out.node_credit = recursion.sweep(t.position, out.importance);
    sizes = recursion.sweep(t.position, out.importance, {}, true);
  } else {
    const Node root = parse_node(f.writers, *question.root, f.S);
    const bool direct = question.options.reroot == Reroot::target;
    out.importance.assign(f.writers.count(), 0.0);
    out.importance[root.writer] = 1;
    const auto sweep = [&](bool by_size) {
      return direct ? recursion.sweep(root.position, out.importance, {}, by_size)
                    : recursion.sweep(root.position, Vec(f.writers.count(), 0.0), root, by_size);
    };
    out.node_credit = sweep(false);
    sizes = sweep(true);
    out.stage1 = recursion.stage1(root, direct);
    for (const naive::Edge& e : recursion.edges(root, direct)) {
      auto& by_writer = out.incoming[e.branch];
      by_writer.resize(f.writers.count(), Vec(f.S, 0.0));
      by_writer[e.writer][e.position] += e.factor;
      for (const Branch branch : {e.branch, Branch::none}) {
        auto& [mass, credit] = out.composition[branch][e.writer];
        mass += std::fabs(e.factor) * recursion.mass({e.writer, e.position});
        credit += std::fabs(e.factor);
      }
    }
  }
  out.token_credit.assign(f.S, 0.0);
  for (int w = 0; w < f.writers.terminals(); ++w) {
    for (int s = 0; s < f.S; ++s) out.token_credit[s] += out.node_credit[w][s];
  }
  out.conditioning = recursion.conditioning();
  double met = 0, largest = 0;
  for (int s = 0; s < f.S; ++s) {
    double here = 0;
    for (int w = 0; w < f.writers.terminals(); ++w) here += sizes[w][s];
    met = std::max(met, here);
    largest = std::max(largest, std::fabs(out.token_credit[s]));
  }
  if (met > 0) out.left = largest / met;
  return out;
}

// The largest relative difference of all that a trace holds, and where. Arrays whose values are all
// below `part` of the largest node credit are what was left when larger credit cancelled; they are
// held against that part.
std::pair<double, std::string> largest_difference(const TraceResult& got, const Expected& want,
                                                  int writers, double part = 0) {
  std::pair<double, std::string> worst{0, ""};
  double floor = 0;
  for (const Vec& row : want.node_credit) {
    for (const double x : row) floor = std::max(floor, part * std::fabs(x));
  }
  const auto take = [&](double d, const std::string& what) {
    if (!(d <= worst.first)) worst = {d, what};
  };
  take(naive::difference(got.importance, want.importance), "importance");
  take(naive::difference(got.token_credit, want.token_credit, floor), "token_credit");
  take(naive::difference(got.node_credit, want.node_credit), "node_credit");
  if (!got.root) return worst;
  if (!got.entries.empty()) {
    take(naive::difference(got.entries, want.stage1), "entries");
  } else {
    Vec neurons(want.stage1.size(), NAN);
    const LayerConfig& layer = got.layout.layer(got.writer_table()[got.root->writer].layer);
    if (layer.mixture()) std::fill(neurons.begin(), neurons.end(), 0.0);
    for (const NeuronEntry& n : got.neuron_entries) {
      if ((n.expert >= 0) != layer.mixture()) return {INFINITY, "neurons of no expert"};
      neurons[std::max(n.expert, 0) * layer.n_neurons + n.neuron] = n.credit;
    }
    Vec experts(layer.n_experts, 0.0), by_neuron(layer.n_experts, 0.0);
    for (const ExpertEntry& e : got.expert_entries) experts[e.expert] = e.credit;
    for (std::size_t n = 0; n < want.stage1.size() && layer.mixture(); ++n)
      by_neuron[n / layer.n_neurons] += want.stage1[n];
    take(naive::difference(experts, by_neuron), "expert entries");
    take(naive::difference(neurons, want.stage1), "neuron entries");
  }
  for (const auto& [branch, credit] : got.incoming) {
    const auto known = want.incoming.find(branch);
    take(naive::difference(
             credit,
             known != want.incoming.end() ? known->second : Mat(writers, Vec(got.length(), 0.0)),
             floor),
         std::string("incoming ") + to_string(branch));
  }
  for (const auto& [branch, credit] : want.incoming)
    take(got.incoming.contains(branch) ? 0 : INFINITY,
         std::string("no incoming ") + to_string(branch));
  for (const auto& [branch, by_writer] : want.composition) {
    Difference mass(floor), credit(floor);
    Vec got_mass(writers, 0.0), got_credit(writers, 0.0);
    if (!got.composition.contains(branch)) return {INFINITY, "no composition"};
    double before = INFINITY;
    for (const CompositionEntry& e : got.composition.at(branch)) {
      got_mass[e.writer] = e.mass;
      got_credit[e.writer] = e.credit;
      take(e.mass <= before ? 0 : INFINITY, "order of composition");
      before = e.mass;
    }
    for (int w = 0; w < writers; ++w) {
      const auto known = by_writer.find(w);
      mass.see(got_mass[w], known != by_writer.end() ? known->second.first : 0.0);
      credit.see(got_credit[w], known != by_writer.end() ? known->second.second : 0.0);
    }
    take(mass.relative(), "composition mass");
    take(credit.relative(), "composition credit");
  }
  return worst;
}

struct Case {
  testing::Shape shape;
  testing::Tensors tensors;
  std::vector<TokenId> ids;
};

Case draw_case(int max_layers, int max_heads, int max_neurons, int max_length) {
  Case out;
  out.shape = testing::draw_shape(max_layers, max_heads, max_neurons);
  out.tensors = testing::random_tensors_of(out.shape.config(), testing::draw_int(0, 1'000'000));
  out.ids = testing::draw_prompt(max_length, out.shape.vocabulary);
  return out;
}

// Draws a target or a root.
Question draw_question(const Case& c, const Writers& writers, const std::vector<double>& betas) {
  Question question;
  const int length = static_cast<int>(c.ids.size());
  question.options = testing::draw_options(betas);
  question.target = testing::draw_target(length, c.shape.vocabulary);
  if (*rc::gen::arbitrary<bool>()) question.root = testing::draw_root(writers, length);
  question.paths.top = 0;
  return question;
}

TEST(CreditOfRandomModels, AgreesWithThePlainRecursionInDouble) {
  int hard = 0;
  EXPECT_TRUE(rc::check("reference backend", [&] {
    const Case c = draw_case(3, 3, 7, 6);
    const Model model = c.tensors.model("reference");
    const naive::Forward f(testing::weights_of(model), c.ids);
    const Prepared prepared = model.prepare(c.ids);
    for (int i = 0; i < 3; ++i) {
      const Question question = draw_question(c, model.writers(), {0, 0.2, 0.8, 2});
      RC_LOG(testing::to_text(c.shape, c.ids, question.options) + " root " +
             question.root.value_or("-"));
      const Expected want = expected_of(f, question);
      // What cancels to less than this is decided by rounding even in double.
      if (want.conditioning < (question.options.beta == 0 ? 1e-4 : 1e-9)) {
        ++hard;
        continue;
      }
      const auto [difference, where] =
          largest_difference(prepared.trace(question), want, model.writers().count());
      RC_LOG(
          fmt::format("{} differs by {} (conditioning {})", where, difference, want.conditioning));
      RC_ASSERT(difference < 1e-9);
    }
  }));
  EXPECT_LT(hard, 100) << "too few of 300 questions were compared";
}

TEST(CreditOfRandomModels, AgreesWithThePlainRecursionInFloatWhereSumsDoNotCancel) {
  for (const std::string& device : testing::float_devices()) {
    int compared = 0;
    EXPECT_TRUE(rc::check(device, [&] {
      const Case c = draw_case(3, 3, 7, 6);
      const Model model = c.tensors.model(device);
      const naive::Forward f(testing::weights_of(model), c.ids);
      const Prepared prepared = model.prepare(c.ids);
      for (int i = 0; i < 3; ++i) {
        const Question question = draw_question(c, model.writers(), {0.2, 0.8, 2});
        RC_LOG(testing::to_text(c.shape, c.ids, question.options) + " root " +
               question.root.value_or("-"));
        const Expected want = expected_of(f, question);
        const TraceResult got = prepared.trace(question);
        if (want.conditioning < 1e-4 || got.ill_conditioned > 0) continue;
        ++compared;
        const auto [difference, where] =
            largest_difference(got, want, model.writers().count(), 0.01);
        RC_LOG(fmt::format("{} differs by {} (conditioning {})", where, difference,
                           want.conditioning));
        RC_ASSERT(difference < 1e-3);
      }
    }));
    EXPECT_GT(compared, 150) << "of 300 questions";
  }
}

class CreditOnEveryDevice : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(CreditOnEveryDevice);

TEST_P(CreditOnEveryDevice, IsNotCalledDoubtfulWhereNoSumCancels) {
  testing::Filter filter(1e-3, 0.85);
  EXPECT_TRUE(rc::check(device(), [&] {
    const Case c = draw_case(2, 2, 5, 4);
    const Model model = c.tensors.model(device());
    const Question question = draw_question(c, model.writers(), {0.8});
    RC_PRE(filter.keeps(
        expected_of(naive::Forward(testing::weights_of(model), c.ids), question).conditioning));
    RC_ASSERT(model.prepare(c.ids).trace(question).ill_conditioned == 0.0);
  }));
}

TEST_P(CreditOnEveryDevice, IsCalledDoubtfulWhereSumsCancel) {
  // Position 0 takes the token's embedding back, so that what layer 0 reads there is the difference
  // of two equal parts.
  testing::Shape shape;
  shape.layers = 1;
  testing::Tensors tensors = testing::random_tensors_of(shape.config(), 2);
  const std::vector<float>& embedding = tensors.values.at("transformer.wte.weight");
  std::vector<float>& position = tensors.values.at("transformer.wpe.weight");
  const auto width = static_cast<std::size_t>(shape.heads * shape.d_head);
  for (std::size_t i = 0; i < width; ++i) position[i] = -embedding[3 * width + i];
  const Prepared prepared = tensors.model(device()).prepare(std::vector<TokenId>{3});
  Question question;
  question.target.ids = {1};
  const TraceResult trace = prepared.trace(question);
  EXPECT_GT(trace.ill_conditioned, 0.01);
  EXPECT_FALSE(trace.warnings.empty());
}

TEST_P(CreditOnEveryDevice, IsTheSameWithAndWithoutAKeyTable) {
  const double tolerance = limit(1e-9, 1e-3);
  testing::Filter filter(limit(1e-6, 1e-3), 0.85), of_tokens(limit(1e-6, 1e-3), 0.7);
  EXPECT_TRUE(rc::check(device(), [&] {
    const Case c = draw_case(3, 3, 5, 6);
    const Model model = c.tensors.model(device(), 2);
    RunContext small;
    small.memory_budget = 0;
    const Prepared table = model.prepare(c.ids);
    const Prepared streamed = model.prepare(c.ids, small);
    RC_ASSERT(engine::state_of(table)->decomposition->keeps_key_scores());
    RC_ASSERT(!engine::state_of(streamed)->decomposition->keeps_key_scores());
    Question question = draw_question(c, model.writers(), {0.2, 0.8});
    question.paths.top = 40;
    if (*rc::gen::arbitrary<bool>()) question.paths.sign = -1;
    RC_LOG(testing::to_text(c.shape, c.ids, question.options) + " root " +
           question.root.value_or("-"));
    const naive::Forward f(testing::weights_of(model), c.ids);
    const Expected want = expected_of(f, question);
    RC_PRE(filter.keeps(want.conditioning));
    const TraceResult a = table.trace(question), b = streamed.trace(question, small);
    RC_ASSERT(naive::difference(b.node_credit, a.node_credit) < tolerance);
    if (of_tokens.keeps(want.token_conditioning()))
      RC_ASSERT(naive::difference(b.token_credit, a.token_credit) < tolerance);
    for (const auto& [branch, credit] : a.incoming)
      RC_ASSERT(naive::difference(b.incoming.at(branch), credit) < tolerance);
    RC_ASSERT(std::fabs(a.coverage.absolute_total - b.coverage.absolute_total) <=
              tolerance * a.coverage.absolute_total);
    RC_ASSERT(std::fabs(a.coverage.absolute_matching - b.coverage.absolute_matching) <=
              tolerance * a.coverage.absolute_total);
    RC_ASSERT(a.paths.size() == b.paths.size());
    for (std::size_t i = 0; i < a.paths.size(); ++i) {
      RC_ASSERT(std::fabs(std::fabs(a.paths[i].credit) - std::fabs(b.paths[i].credit)) <=
                tolerance * std::fabs(a.paths[0].credit));
    }
  }));
}

TEST_P(CreditOnEveryDevice, IsTheSameBitForBitOnOneAndTwoThreads) {
  EXPECT_TRUE(rc::check(device(), [&] {
    const Case c = draw_case(2, 3, 7, 6);
    const Model one = c.tensors.model(device(), 1), two = c.tensors.model(device(), 2);
    Question question = draw_question(c, one.writers(), {0, 0.8});
    question.paths.top = 30;
    RunContext context;
    if (*rc::gen::arbitrary<bool>()) context.memory_budget = 0;
    const TraceResult a = one.prepare(c.ids, context).trace(question),
                      b = two.prepare(c.ids, context).trace(question);
    RC_ASSERT(a.token_credit == b.token_credit);
    RC_ASSERT(a.node_credit == b.node_credit);
    RC_ASSERT(a.paths.size() == b.paths.size());
    for (std::size_t i = 0; i < a.paths.size(); ++i) {
      RC_ASSERT(a.paths[i].credit == b.paths[i].credit);
      RC_ASSERT(a.paths[i].nodes == b.paths[i].nodes);
    }
  }));
}

TEST_P(CreditOnEveryDevice, IsTheSameInABatchAndAlone) {
  testing::Filter filter(limit(1e-6, 1e-3), 0.85);
  EXPECT_TRUE(rc::check(device(), [&] {
    const Case c = draw_case(2, 3, 7, 6);
    std::vector<std::vector<TokenId>> prompts = {c.ids};
    for (int i = 0; i < 3; ++i) prompts.push_back(testing::draw_prompt(6, c.shape.vocabulary));
    const Model model = c.tensors.model(device());
    const std::vector<Prepared> batch = model.prepare(prompts);
    RC_ASSERT(batch.size() == prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      RC_ASSERT(batch[i].ids() == prompts[i]);
      Question question;
      question.options.scores = *rc::gen::element(Scores::raw, Scores::centered);
      question.target.ids = {3};
      question.paths.top = 10;
      const Prepared alone = model.prepare(prompts[i]);
      const naive::Forward f(testing::weights_of(model), prompts[i]);
      Question resolved = question;
      resolved.target.position = alone.length() - 1;
      if (!filter.keeps(expected_of(f, resolved).conditioning)) continue;
      RC_ASSERT(naive::difference(batch[i].cache("logits", 0).values,
                                  alone.cache("logits", 0).values) < limit(1e-12, 1e-5));
      const TraceResult a = batch[i].trace(question), b = alone.trace(question);
      RC_ASSERT(naive::difference(a.node_credit, b.node_credit) < limit(1e-9, 1e-3));
      RC_ASSERT(std::fabs(a.coverage.absolute_total - b.coverage.absolute_total) <=
                limit(1e-9, 1e-3) * b.coverage.absolute_total);
    }
  }));
}

// Symmetries
// -------------------------------------------------------------------------------------------------

TEST_P(CreditOnEveryDevice, ScalesWithTheHeadAndLeavesRootsAlone) {
  testing::Filter filter(limit(1e-6, 1e-3), 0.85);
  EXPECT_TRUE(rc::check(device(), [&] {
    Case c = draw_case(2, 2, 5, 5);
    c.shape.tied = false;
    c.tensors = testing::random_tensors_of(c.shape.config(), testing::draw_int(0, 1'000'000));
    testing::Tensors larger = c.tensors;
    const std::string head = c.shape.family == "gpt_neox" ? "embed_out.weight" : "lm_head.weight";
    for (float& x : larger.values.at(head)) x *= 4;  // a power of 2: exact
    const Model model = c.tensors.model(device()), scaled = larger.model(device());
    Question question = draw_question(c, model.writers(), {0.8});
    question.root = {};
    RC_PRE(filter.keeps(
        expected_of(naive::Forward(testing::weights_of(model), c.ids), question).conditioning));
    const TraceResult a = model.prepare(c.ids).trace(question),
                      b = scaled.prepare(c.ids).trace(question);
    Difference d, percent;
    for (std::size_t s = 0; s < c.ids.size(); ++s) {
      d.see(b.token_credit[s], 4 * a.token_credit[s]);
      percent.see(b.token_percent[s], a.token_percent[s]);
    }
    RC_ASSERT(d.relative() < limit(1e-12, 1e-5));
    RC_ASSERT(percent.relative() < limit(1e-9, 1e-5));
    question.root = testing::draw_root(model.writers(), static_cast<int>(c.ids.size()));
    question.options.reroot = Reroot::target;
    RC_ASSERT(naive::difference(scaled.prepare(c.ids).trace(question).node_credit,
                                model.prepare(c.ids).trace(question).node_credit) <
              limit(1e-12, 1e-5));
  }));
}

// Moves blocks of `width` rows (axis 0) or columns (axis 1) of a matrix: block i of the result is
// block order[i] of what was there.
void reorder(testing::Tensors& t, const std::string& name, int axis, int width,
             const std::vector<int>& order) {
  const std::vector<float> from = t.values.at(name);
  std::vector<float>& to = t.values.at(name);
  const auto columns = static_cast<std::size_t>(t.shapes.at(name)[1]);
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t index[2] = {i / columns, i % columns};
    index[axis] = static_cast<std::size_t>(order[index[axis] / static_cast<std::size_t>(width)]) *
                      static_cast<std::size_t>(width) +
                  index[axis] % static_cast<std::size_t>(width);
    to[i] = from[index[0] * columns + index[1]];
  }
}

TEST_P(CreditOnEveryDevice, DoesNotDependOnTheOrderOfHeadsAndNeurons) {
  testing::Filter filter(limit(1e-6, 1e-3), 0.85), of_tokens(limit(1e-6, 1e-3), 0.7);
  EXPECT_TRUE(rc::check(device(), [&] {
    testing::Shape shape;
    shape.family = "llama";
    shape.layers = 2;
    shape.heads = shape.kv_heads = 3;
    shape.neurons = 5;
    const Case c{shape, testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)),
                 testing::draw_prompt(5, shape.vocabulary)};
    testing::Tensors moved = c.tensors;
    const std::vector<int> heads = {2, 0, 1}, neurons = {3, 1, 4, 0, 2};
    for (const char* part : {"q_proj", "k_proj", "v_proj"})
      reorder(moved, fmt::format("model.layers.0.self_attn.{}.weight", part), 0, shape.d_head,
              heads);
    reorder(moved, "model.layers.0.self_attn.o_proj.weight", 1, shape.d_head, heads);
    for (const char* part : {"gate_proj", "up_proj"})
      reorder(moved, fmt::format("model.layers.1.mlp.{}.weight", part), 0, 1, neurons);
    reorder(moved, "model.layers.1.mlp.down_proj.weight", 1, 1, neurons);
    const Model model = c.tensors.model(device()), other = moved.model(device());
    Question question = draw_question(c, model.writers(), {0.2, 0.8});
    question.root = {};
    const Expected want = expected_of(naive::Forward(testing::weights_of(model), c.ids), question);
    RC_PRE(filter.keeps(want.conditioning));
    const TraceResult a = model.prepare(c.ids).trace(question),
                      b = other.prepare(c.ids).trace(question);
    if (of_tokens.keeps(want.token_conditioning()))
      RC_ASSERT(naive::difference(b.token_credit, a.token_credit) < limit(1e-9, 1e-3));
    Mat renamed = b.node_credit;
    for (int h = 0; h < 3; ++h)
      renamed[model.writers().head(0, heads[h])] = b.node_credit[model.writers().head(0, h)];
    RC_ASSERT(naive::difference(renamed, a.node_credit) < limit(1e-9, 1e-3));
  }));
}

// Both ways to score
// -------------------------------------------------------------------------------------------------

// Long prompts on narrow heads take other kernels than short ones on wide heads; all must give what
// double precision gives.
void compare_with_reference(const std::string& device, const testing::Shape& shape, int length) {
  const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 5);
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.push_back((i * i * 7 + 3 * i) % shape.vocabulary);
  const Model single = tensors.model(device, 2), reference = tensors.model("reference", 2);
  const Prepared a = single.prepare(ids), b = reference.prepare(ids);
  for (int l = 0; l < shape.layers; ++l) {
    for (const Branch branch : {Branch::K, Branch::Q, Branch::V}) {
      EXPECT_LT(naive::difference(a.scores(l, branch).values, b.scores(l, branch).values), 1e-5)
          << device << ' ' << shape.config() << " layer " << l << ' ' << to_string(branch);
    }
  }
  for (const auto scores : {Scores::raw, Scores::centered}) {
    Question question;
    question.target.ids = {1};
    question.options.scores = scores;
    question.options.beta = 2;  // the floor rules, so that float and double cannot differ by much
    question.paths.top = 0;
    const TraceResult x = a.trace(question), y = b.trace(question);
    RunContext small;
    small.memory_budget = 0;
    const TraceResult streamed = single.prepare(ids, small).trace(question);
    EXPECT_NEAR(x.coverage.absolute_total / y.coverage.absolute_total, 1, 1e-4)
        << shape.config() << ' ' << to_string(scores);
    EXPECT_NEAR(streamed.coverage.absolute_total / y.coverage.absolute_total, 1, 1e-4)
        << shape.config() << ' ' << to_string(scores);
  }
}

TEST(Scores, AreTheSameHoweverTheyAreComputed) {
  for (const std::string& device : testing::float_devices())
    for (const char* family : {"gpt2", "gpt_neox", "llama", "qwen3"}) {
      testing::Shape shape;
      shape.family = family;
      shape.context = 48;
      shape.heads = 2;
      shape.kv_heads = std::string(family) == "llama" ? 1 : 2;
      shape.d_head = 4;
      compare_with_reference(device, shape,
                             40);  // far more pairs than dimensions: every writer is projected once
      shape.d_head = 32;
      shape.d_model = 12;
      compare_with_reference(device, shape,
                             3);  // hardly any pairs: a vector in model space for each
    }
}

}  // namespace
}  // namespace unpack
