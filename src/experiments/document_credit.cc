// Sources of an answer where the right document is known: what happens to the answer when the
// documents a method puts first are taken away, and how well its credit foretells random ablations.
#include "experiments/document_credit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "experiments/plots.h"
#include "experiments/statistics.h"
#include "experiments/text_data.h"
#include "unpack/baselines.h"
#include "unpack/error.h"
#include "unpack/prepared.h"
#include "unpack/sources.h"

namespace unpack::experiments {
namespace {

constexpr std::size_t kDocuments = 4;
constexpr std::size_t kRemoved = 3;     // documents taken away, one after the other
constexpr std::size_t kAblations = 32;  // random sets of documents
constexpr int kDraws = 200;             // until the model answers rightly
constexpr const char* kWays[] = {"unpack",    "unpack, best",  "ifr",
                                 "attention", "leave-one-out", "random"};

struct DocumentCase {
  std::vector<std::string> documents;
  std::size_t right = 0;  // the only one that names the answer
  std::string question, answer;
};

struct WordLists {
  std::vector<std::string> names, places, objects;
};

DocumentCase draw_case(const WordLists& words, std::mt19937_64& generator) {
  DocumentCase out;
  std::vector<std::string> names = words.names, places = words.places;
  shuffle(names, generator);
  shuffle(places, generator);
  // The other documents tell of other people, or of places: models differ in what they can take.
  const bool people = generator() % 2 == 0, then = generator() % 2 == 0,
             first = generator() % 2 == 0;
  out.right = generator() % kDocuments;
  for (std::size_t d = 0; d < kDocuments; ++d) {
    const std::string &a = names[2 * d], &b = names[2 * d + 1];
    if (d == out.right) {
      out.documents.push_back(fmt::format("{} and {} went to the {}.", a, b, places[d]));
      out.answer = " " + (first ? a : b);
      out.question = fmt::format("{}{} gave a {} to", then ? "Then " : "", first ? b : a,
                                 words.objects[generator() % words.objects.size()]);
    } else {
      out.documents.push_back(people ? fmt::format("{} and {} went to the {}.", a, b, places[d])
                                     : fmt::format("The {} was quiet.", places[d]));
    }
  }
  return out;
}

std::string prompt_of(const DocumentCase& given, unsigned kept) {
  std::string text;
  for (std::size_t d = 0; d < given.documents.size(); ++d) {
    if ((kept >> d & 1U) != 0) text += given.documents[d] + " ";
  }
  return text + given.question;
}

// The answer's log-probability with a set of documents, each found out once.
class AnswerOdds {
 public:
  AnswerOdds(const ModelSession& session, const DocumentCase& given)
      : session_(session), given_(given), answer_(session.model.single_token(given.answer)) {}

  double operator()(unsigned kept) {
    if (const auto known = known_.find(kept); known != known_.end()) return known->second;
    std::vector<TokenId> ids = session_.model.encode_prompt(prompt_of(given_, kept));
    ids.push_back(answer_);
    const double odds = *session_.model.predict(ids, {}, session_.context).log_probability.back();
    return known_[kept] = odds;
  }

 private:
  const ModelSession& session_;
  const DocumentCase& given_;
  TokenId answer_;
  std::map<unsigned, double> known_;
};

double over_span(const std::vector<double>& credit, const Span& span) {
  double sum = 0;
  for (int s = span.from; s <= span.to; ++s) sum += credit[s];
  return sum;
}

// Of the last position, the mean over all heads.
std::vector<double> mean_attention(const Prepared& prepared) {
  const std::size_t length = prepared.length();
  std::vector<double> out(length, 0.0);
  double heads = 0;
  for (int layer = 0; layer < prepared.model().config().n_layers; ++layer) {
    const CachedArray pattern = prepared.cache("pattern", layer);  // [H, S, S]
    const std::size_t count = pattern.values.size() / (length * length);
    heads += count;
    for (std::size_t h = 0; h < count; ++h) {
      for (std::size_t s = 0; s < length; ++s)
        out[s] += pattern.values[(h * length + length - 1) * length + s];
    }
  }
  for (double& x : out) x /= heads;
  return out;
}

// Scores of every document by method.
std::map<std::string, std::vector<double>> scores_of(const ModelSession& session,
                                                     const DocumentCase& given, AnswerOdds& odds,
                                                     std::mt19937_64& generator) {
  SourcesOptions options;
  options.question = given.question;
  options.prompt_template = "{documents}{question}";
  options.document_template = "{text} ";
  options.answer = given.answer;
  options.options = session.options.options;
  for (std::size_t d = 0; d < given.documents.size(); ++d)
    options.documents.push_back({fmt::format("{}", d + 1), given.documents[d]});
  const SourcesResult found = find_sources(session.model, options, session.context);
  options.options = preset_options("best");
  const SourcesResult best = find_sources(session.model, options, session.context);

  std::vector<TokenId> ids;
  for (int i = 0; i < found.prompt_length; ++i) ids.push_back(found.tokens[i].id);
  const Prepared prepared = session.model.prepare(ids, session.context);
  Target target;
  target.ids = {session.model.single_token(given.answer)};
  const std::vector<double> ifr =
      baseline(prepared, target, Method::ifr, session.context).token_credit;
  const std::vector<double> attention = mean_attention(prepared);
  constexpr unsigned kAll = (1U << kDocuments) - 1;
  std::map<std::string, std::vector<double>> out;
  for (std::size_t d = 0; d < given.documents.size(); ++d) {
    const Span& span = found.documents[d].span;
    for (const auto& [way, result] :
         {std::pair{"unpack", &found}, std::pair{"unpack, best", &best}}) {
      double credit = 0;
      for (const AnswerSentence& sentence : result->sentences)
        credit += sentence.document_credit[d];
      out[way].push_back(credit);
    }
    out["ifr"].push_back(over_span(ifr, span));
    out["attention"].push_back(over_span(attention, span));
    out["leave-one-out"].push_back(odds(kAll) - odds(kAll & ~(1U << d)));
    out["random"].push_back(generator() % 1'000'000);
  }
  return out;
}

Json measure_case(const ModelSession& session, const DocumentCase& given,
                  std::mt19937_64& generator) {
  AnswerOdds odds(session, given);
  constexpr unsigned kAll = (1U << kDocuments) - 1;
  Json record = {{"right", given.right}, {"log_probability", odds(kAll)}};
  const auto scores = scores_of(session, given, odds, generator);
  std::vector<unsigned> sets;
  for (std::size_t i = 0; i < kAblations; ++i) sets.push_back(generator() & kAll);
  std::vector<double> seen;
  for (const unsigned kept : sets) seen.push_back(odds(kept));
  for (const auto& [way, score] : scores) {
    std::vector<std::size_t> order(kDocuments);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&, s = &score](std::size_t a, std::size_t b) { return (*s)[a] > (*s)[b]; });
    Json drops = Json::array();
    unsigned kept = kAll;
    for (std::size_t k = 0; k < kRemoved; ++k) {
      kept &= ~(1U << order[k]);
      drops.push_back(odds(kAll) - odds(kept));
    }
    std::vector<double> foretold;
    for (const unsigned set : sets) {
      double sum = 0;
      for (std::size_t d = 0; d < kDocuments; ++d) sum += (set >> d & 1U) != 0 ? score[d] : 0;
      foretold.push_back(sum);
    }
    const double lds = spearman(foretold, seen);
    record[way] = {{"scores", score},
                   {"found", order[0] == given.right ? 1 : 0},
                   {"drops", drops},
                   {"lds", std::isnan(lds) ? 0.0 : lds}};
  }
  return record;
}

// A case that the model answers rightly; null where none was drawn.
Json make_record(const ModelSession& session, const WordLists& words, int index) {
  constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15ULL;
  std::mt19937_64 generator(session.options.seed + kStride * (index + 1));
  for (int draw = 1; draw <= kDraws; ++draw) {
    const DocumentCase given = draw_case(words, generator);
    const std::vector<TokenId> ids =
        session.model.encode_prompt(prompt_of(given, (1U << kDocuments) - 1));
    PredictOptions one;
    one.top = 1;
    if (session.model.predict(ids, one, session.context).predictions[0].id !=
        session.model.single_token(given.answer))
      continue;
    Json record = measure_case(session, given, generator);
    record["draws"] = draw;
    return record;
  }
  return {{"draws", kDraws}};
}

Json interval_json(const std::vector<double>& values, std::uint64_t seed) {
  const Interval interval = bootstrap_interval(values, seed);
  return {{"mean", mean(values)}, {"low", interval.low}, {"high", interval.high}};
}

std::string interval_text(const Json& value, int digits) {
  return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", value.at("mean").get<double>(), digits,
                     value.at("low").get<double>(), digits, value.at("high").get<double>(), digits);
}

}  // namespace

Json run_sources(ModelSession& session) {
  const WordLists words = {single_token_words(session.model, "names.txt"),
                           single_token_words(session.model, "places.txt"),
                           single_token_words(session.model, "objects.txt")};
  if (words.names.size() < 2 * kDocuments || words.places.size() < kDocuments ||
      words.objects.empty())
    throw InputError(fmt::format("too few names, places and objects are one token of {}",
                                 session.model.config().name));
  std::map<std::string, std::map<std::string, std::vector<double>>> values;
  double draws = 0;
  int cases = 0;
  for (int i = 0; i < session.n; ++i) {
    session.context.report("questions", i, session.n);
    const Json* record = session.record(i, session.key(fmt::format("question {}", i)),
                                        [&] { return make_record(session, words, i); });
    if (!record) continue;
    draws += record->at("draws").get<double>();
    if (!record->contains("right")) continue;
    ++cases;
    for (const char* way : kWays) {
      const Json& r = record->at(way);
      values[way]["found"].push_back(r.at("found").get<double>());
      values[way]["lds"].push_back(r.at("lds").get<double>());
      for (std::size_t k = 0; k < kRemoved; ++k)
        values[way][fmt::format("drop {}", k + 1)].push_back(r.at("drops").at(k).get<double>());
    }
  }
  if (session.records.partial()) return {};
  if (cases == 0)
    throw InputError(fmt::format("{} answers none of these questions: there is nothing to explain",
                                 session.model.config().name));
  if (cases < session.n)
    session.warnings.push_back(
        fmt::format("{}: {} of {} questions were answered", session.name, cases, session.n));
  Json summary = {{"questions", cases}, {"drawn", draws}, {"seed", session.options.seed}};
  for (const char* way : kWays) {
    for (const auto& [what, list] : values[way])
      summary[way][what] = interval_json(list, session.options.seed);
  }
  return summary;
}

std::string report_sources(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out = fmt::format(
      "Four documents of one sentence; one of them names the two people that matter (\"Mary and "
      "John went to the store.\"), the others name other people (\"Tom and Anna went to the "
      "park.\") or places (\"The park was quiet.\").\nThe question goes on with one of the two "
      "(\"Then John gave a drink to\"), so the answer is the other, and the right document is "
      "known. "
      "Questions that a model answers wrongly are drawn again, {} times at most.\n\n"
      "found: the right document has the largest score. drop k: how much the answer's "
      "log-probability falls when the k documents with the largest scores are left out of the "
      "prompt. LDS: Spearman correlation of\nthe summed scores of the documents that are left "
      "with the answer's log-probability over {} random sets of documents. Leave-one-out costs a "
      "forward pass a document.\nMeans with 95% bootstrap intervals over questions (2,000 "
      "resamples, "
      "seed of the run). `unpack`: the run's settings; `unpack, best`: `--preset best`.\n",
      kDraws, kAblations);
  std::vector<std::vector<std::string>> rows = {
      {"model", "method", "found", "drop 1", "drop 2", "drop 3", "LDS"}};
  std::vector<std::vector<std::string>> drawn = {{"model", "questions", "drawn", "seed"}};
  std::vector<std::string> groups;
  std::vector<BarSeries> series;
  for (const char* way : kWays) series.push_back({way, {}, {}});
  for (const auto& [model, s] : summaries.items()) {
    groups.push_back(model);
    drawn.push_back({model, fmt::format("{}", s.at("questions").get<int>()),
                     fmt::format("{:.0f}", s.at("drawn").get<double>()),
                     std::to_string(s.at("seed").get<std::uint64_t>())});
    for (std::size_t w = 0; w < series.size(); ++w) {
      const Json& v = s.at(kWays[w]);
      rows.push_back({model, kWays[w], interval_text(v.at("found"), 2),
                      interval_text(v.at("drop 1"), 2), interval_text(v.at("drop 2"), 2),
                      interval_text(v.at("drop 3"), 2), interval_text(v.at("lds"), 3)});
      series[w].values.push_back(v.at("lds").at("mean"));
      series[w].interval.emplace_back(v.at("lds").at("low"), v.at("lds").at("high"));
    }
  }
  files.push_back({"sources.svg", bar_plot("Credit against random ablations",
                                           "Spearman correlation (LDS)", groups, series)});
  return out + "\n" + markdown_table(rows) + "\n![LDS](sources.svg)\n\n" + markdown_table(drawn);
}

}  // namespace unpack::experiments
