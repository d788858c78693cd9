// Paths against brute force: on models small enough, every path is walked one by one.
#include "unit/naive/paths.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "unit/devices.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

using naive::Enumeration;
using naive::Vec;

// A prompt, a question about it, and everything the second program knows of its paths.
struct Drawn {
  bool in_double = true;
  testing::Shape shape;
  std::vector<TokenId> ids;
  Question question;
  std::optional<Model> model;
  std::unique_ptr<naive::Forward> forward;
  std::unique_ptr<naive::Recursion> recursion;
  std::unique_ptr<Enumeration> enumeration;
  std::vector<Path> all;

  // How far credits may be apart: in single precision what conditioning allows.
  double tolerance() const { return in_double ? 1e-9 : 1e-3; }
  double largest() const {
    double size = 0;
    for (const Path& p : all) size = std::max(size, std::fabs(p.credit));
    return size;
  }
  TraceResult trace(const PathQuery& query) const {
    Question q = question;
    q.paths = query;
    return model->prepare(ids).trace(q);
  }
};

Drawn draw(const std::string& device, bool with_root, std::optional<MlpRule> rule = {}) {
  Drawn d;
  d.in_double = device == "reference";
  d.shape = testing::draw_shape(2, 2, 4);
  d.ids = testing::draw_prompt(3, d.shape.vocabulary);
  d.model =
      testing::random_tensors_of(d.shape.config(), testing::draw_int(0, 1'000'000)).model(device);
  const int length = static_cast<int>(d.ids.size());
  d.question.options = testing::draw_options({0.2, 0.8, 2});
  if (rule) d.question.options.mlp = *rule;
  d.question.target = testing::draw_target(length, d.shape.vocabulary);
  if (with_root) d.question.root = testing::draw_root(d.model->writers(), length);
  RC_LOG(testing::to_text(d.shape, d.ids, d.question.options) + " root " +
         d.question.root.value_or("-"));

  const Target& t = d.question.target;
  d.forward = std::make_unique<naive::Forward>(testing::weights_of(*d.model), d.ids);
  d.recursion = std::make_unique<naive::Recursion>(
      *d.forward, d.question.options,
      naive::Recursion::target_direction(*d.forward, t.position, t.ids, t.versus, t.raw));
  std::vector<naive::TopCredit> tops;
  if (with_root) {
    tops.push_back({parse_node(d.model->writers(), *d.question.root, length), 1.0,
                    d.question.options.reroot == Reroot::target});
  } else {
    const Vec first = d.recursion->importance(t.position);
    for (int w = 0; w < d.model->writers().count(); ++w)
      tops.push_back({{w, t.position}, first[w], true});
  }
  d.enumeration = std::make_unique<Enumeration>(*d.recursion, d.model->writers(), tops);
  d.all = d.enumeration->all();
  RC_PRE(d.recursion->conditioning() > (d.in_double ? 1e-6 : 1e-3));
  RC_PRE(d.all.size() < 60'000);
  return d;
}

std::vector<Path> matching(const Drawn& d, const PathQuery& query) {
  std::vector<Path> out;
  for (const Path& p : d.all) {
    if (naive::matches(p, query, d.model->writers())) out.push_back(p);
  }
  std::stable_sort(out.begin(), out.end(), [](const Path& a, const Path& b) {
    return std::fabs(a.credit) > std::fabs(b.credit);
  });
  return out;
}

double absolute(const std::vector<Path>& paths) {
  double sum = 0;
  for (const Path& p : paths) sum += std::fabs(p.credit);
  return sum;
}

// Sizes in order, credit by path, no path twice. What is nothing but rounding may be there or not.
void expect_same(const std::vector<Path>& got, const std::vector<Path>& want, const Drawn& d) {
  const double limit = d.tolerance() * d.largest();
  std::map<std::vector<int>, double> by_name;
  for (const Path& p : d.all) by_name[Enumeration::key(p)] = p.credit;
  for (std::size_t i = 0; i < std::max(got.size(), want.size()); ++i) {
    const double a = i < got.size() ? std::fabs(got[i].credit) : 0,
                 b = i < want.size() ? std::fabs(want[i].credit) : 0;
    RC_ASSERT(std::fabs(a - b) <= limit);
  }
  std::map<std::vector<int>, int> seen;
  for (const Path& p : got) {
    const auto key = Enumeration::key(p);
    RC_ASSERT(++seen[key] == 1);
    const auto known = by_name.find(key);
    RC_ASSERT(std::fabs(p.credit - (known == by_name.end() ? 0.0 : known->second)) <= limit);
  }
}

PathQuery draw_filters(const Drawn& d) {
  PathQuery query;
  const Writers& writers = d.model->writers();
  if (*rc::gen::arbitrary<bool>())
    query.branch = d.model->config().mixture() ? *rc::gen::element(Branch::K, Branch::Q, Branch::V,
                                                                   Branch::R, Branch::G, Branch::U)
                   : d.model->config().gated()
                       ? *rc::gen::element(Branch::K, Branch::Q, Branch::V, Branch::G, Branch::U)
                       : *rc::gen::element(Branch::K, Branch::Q, Branch::V);
  if (*rc::gen::arbitrary<bool>())
    query.through = writers.name(testing::draw_int(0, writers.count()));
  if (*rc::gen::arbitrary<bool>())
    query.from = testing::draw_int(0, static_cast<int>(d.ids.size()));
  if (*rc::gen::arbitrary<bool>()) query.min_layer = testing::draw_int(0, d.shape.layers + 1);
  if (*rc::gen::arbitrary<bool>()) query.sign = *rc::gen::element(1, -1);
  return query;
}

class Paths : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(Paths);

TEST_P(Paths, AddUpToTheTokenCredit) {
  EXPECT_TRUE(rc::check(device(), [&] {
    const Drawn d = draw(device(), *rc::gen::arbitrary<bool>());
    PathQuery query;
    query.top = 100'000;
    const TraceResult got = d.trace(query);
    expect_same(got.paths, matching(d, query), d);
    Vec by_source(d.ids.size(), 0.0);
    for (const Path& p : got.paths) by_source[p.nodes.front().position] += p.credit;
    for (std::size_t s = 0; s < by_source.size(); ++s)
      RC_ASSERT(std::fabs(by_source[s] - got.token_credit[s]) <=
                d.tolerance() * std::max(1e-30, absolute(d.all)));
    RC_ASSERT(std::fabs(got.coverage.absolute_total - absolute(d.all)) <=
              d.tolerance() * absolute(d.all));
    RC_ASSERT(std::fabs(got.coverage.absolute_matching - absolute(d.all)) <=
              d.tolerance() * absolute(d.all));
  }));
}

TEST_P(Paths, AreTheStrongestForEveryCombinationOfFilters) {
  EXPECT_TRUE(rc::check(device(), [&] {
    const Drawn d = draw(device(), *rc::gen::arbitrary<bool>());
    for (int i = 0; i < 6; ++i) {
      PathQuery query = draw_filters(d);
      query.top = testing::draw_int(1, 60);
      const TraceResult got = d.trace(query);
      std::vector<Path> want = matching(d, query);
      RC_LOG(fmt::format("branch {} through {} from {} min_layer {} sign {} top {}",
                         query.branch ? to_string(*query.branch) : "-", query.through.value_or("-"),
                         query.from.value_or(-1), query.min_layer.value_or(-1),
                         query.sign.value_or(0), query.top));
      RC_ASSERT(std::fabs(got.coverage.absolute_matching - absolute(want)) <=
                d.tolerance() * absolute(d.all));
      RC_ASSERT(std::fabs(got.coverage.absolute_total - absolute(d.all)) <=
                d.tolerance() * absolute(d.all));
      RC_ASSERT(std::fabs(got.coverage.absolute - absolute(got.paths)) <=
                limit(1e-12, 1e-6) * absolute(d.all));
      RC_ASSERT(got.coverage.paths == got.paths.size());
      RC_ASSERT(got.paths.size() <= query.top);
      for (const Path& p : got.paths) RC_ASSERT(naive::matches(p, query, d.model->writers()));
      if (want.size() > query.top) want.resize(query.top);
      expect_same(got.paths, want, d);
    }
  }));
}

// The same names with the same credit.
void expect_same_names(const std::vector<Path>& got, const std::vector<Path>& want, double limit) {
  RC_ASSERT(got.size() == want.size());
  std::map<std::vector<int>, double> by_name;
  for (const Path& p : want) by_name[Enumeration::key(p)] = p.credit;
  for (const Path& p : got) {
    const auto known = by_name.find(Enumeration::key(p));
    RC_ASSERT(known != by_name.end());
    RC_ASSERT(std::fabs(p.credit - known->second) <= limit);
    by_name.erase(known);
  }
}

TEST_P(Paths, AboveAThresholdAreAllThoseWhosePrefixesReachIt) {
  std::size_t listed = 0;
  EXPECT_TRUE(rc::check(device(), [&] {
    const Drawn d = draw(device(), *rc::gen::arbitrary<bool>());
    RC_PRE(d.largest() > 0);
    PathQuery query;
    query.top = 100'000;
    query.tau = d.largest() * *rc::gen::element(0.3, 0.03, 0.003);
    // A product at the threshold itself may fall on either side.
    RC_PRE(d.enumeration->all(*query.tau * (1 + d.tolerance())).size() ==
           d.enumeration->all(*query.tau * (1 - d.tolerance())).size());
    if (*rc::gen::arbitrary<bool>()) query.sign = -1;
    std::vector<Path> want;
    for (const Path& p : d.enumeration->all(*query.tau)) {
      if (naive::matches(p, query, d.model->writers())) want.push_back(p);
    }
    listed += want.size();
    expect_same_names(d.trace(query).paths, want, d.tolerance() * d.largest());
  }));
  EXPECT_GT(listed, 50U);
}

TEST_P(Paths, ByTheEntryRuleAreThoseOfTheWalkEntryByEntry) {
  std::size_t listed = 0;
  EXPECT_TRUE(rc::check(device(), [&] {
    const Drawn d = draw(device(), *rc::gen::arbitrary<bool>(), MlpRule::per_neuron);
    RC_PRE(d.largest() > 0);
    PathQuery query;
    query.top = 100'000;
    query.rule = TauRule::entry;
    query.tau = d.largest() * *rc::gen::element(0.3, 0.05, 0.01);
    const std::vector<Path> want = d.enumeration->by_entry(*query.tau);
    RC_PRE(d.enumeration->margin() > d.tolerance());
    listed += want.size();
    expect_same_names(d.trace(query).paths, want, d.tolerance() * d.largest());
  }));
  EXPECT_GT(listed, 50U);
}

TEST_P(Paths, MassesOfAllBranchesAddUpToTheTotalOfTheRoot) {
  EXPECT_TRUE(rc::check(device(), [&] {
    const Drawn d = draw(device(), true);
    const TraceResult got = d.trace({});
    double branches = 0, all = 0;
    for (const auto& [branch, entries] : got.composition) {
      for (const CompositionEntry& e : entries) (branch == Branch::none ? all : branches) += e.mass;
    }
    RC_ASSERT(std::fabs(branches - got.coverage.absolute_total) <= d.tolerance() * absolute(d.all));
    RC_ASSERT(std::fabs(all - got.coverage.absolute_total) <= d.tolerance() * absolute(d.all));
  }));
}

TEST_P(Paths, ComeInTheSameOrderOnEveryRun) {
  testing::Shape shape;
  const Model model = testing::random_tensors_of(shape.config(), 1).model(device(), 2);
  const std::vector<TokenId> ids = {1, 1, 1, 1};
  Question question;
  question.target.ids = {2};
  question.paths.top = 500;
  const TraceResult a = model.prepare(ids).trace(question);
  ASSERT_EQ(a.paths.size(), 500U);
  for (int run = 0; run < 3; ++run) {
    const TraceResult b = model.prepare(ids).trace(question);
    ASSERT_EQ(b.paths.size(), a.paths.size());
    for (std::size_t i = 0; i < a.paths.size(); ++i) {
      EXPECT_EQ(a.paths[i].nodes, b.paths[i].nodes);
      EXPECT_EQ(a.paths[i].branches, b.paths[i].branches);
    }
  }
}

TEST_P(Paths, FewerAreTheBeginningOfMore) {
  testing::Shape shape;
  shape.family = "llama";
  const Model model = testing::random_tensors_of(shape.config(), 4).model(device());
  const Prepared prepared = model.prepare(std::vector<TokenId>{1, 2, 3, 4});
  Question question;
  question.target.ids = {2};
  question.paths.top = 1000;
  const TraceResult more = prepared.trace(question);
  for (const std::size_t top :
       {std::size_t{0}, std::size_t{1}, std::size_t{10}, std::size_t{999}}) {
    question.paths.top = top;
    const TraceResult fewer = prepared.trace(question);
    ASSERT_EQ(fewer.paths.size(), top);
    for (std::size_t i = 0; i < top; ++i)
      EXPECT_EQ(std::fabs(fewer.paths[i].credit), std::fabs(more.paths[i].credit));
  }
}

TEST_P(Paths, RefuseWhatCannotBeMeant) {
  testing::Shape shape;
  const Model model = testing::random_tensors_of(shape.config(), 1).model(device());
  const Prepared prepared = model.prepare(std::vector<TokenId>{1, 2});
  const auto trace = [&](const PathQuery& query, MlpRule mlp = MlpRule::per_neuron) {
    Question question;
    question.paths = query;
    question.options.mlp = mlp;
    return prepared.trace(question);
  };
  PathQuery query;
  query.tau = -1;
  EXPECT_THROW(trace(query), UsageError);
  query.tau = 0.1;
  query.rule = TauRule::entry;
  EXPECT_NO_THROW(trace(query));
  EXPECT_THROW(trace(query, MlpRule::l2), UsageError);
  query = {};
  query.through = "A9.H0";
  EXPECT_THROW(trace(query), InputError);
  query = {};
  query.sign = 2;
  EXPECT_THROW(trace(query), UsageError);
  query = {};
  query.from = -9;
  EXPECT_THROW(trace(query), InputError);
  query.from = 7;
  EXPECT_TRUE(trace(query).paths.empty());
  EXPECT_NE(trace(query).warnings.at(0).find("position 7"), std::string::npos);
  query = {};
  query.branch = Branch::mlp;
  EXPECT_THROW(trace(query), UsageError);
  query.branch = Branch::G;
  if (!model.config().gated()) {
    EXPECT_TRUE(trace(query).paths.empty());
    EXPECT_NE(trace(query).warnings.at(0).find("branch G"), std::string::npos);
  }
  query = {};
  query.top = kMostPaths + 1;
  EXPECT_THROW(trace(query), UsageError);
}

}  // namespace
}  // namespace unpack
