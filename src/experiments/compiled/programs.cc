// The programs: what each one computes, its prompts, their counterfactuals, and the tokens the
// answer depends on. The first layer holds no part of a program: its decoy writes before every live
// head.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "experiments/compiled/program.h"
#include "unpack/error.h"

namespace unpack::experiments::compiled {

namespace {

constexpr int kVocabulary = 16;
constexpr int kLength = 12;
constexpr int kWords = 14;  // tokens 0 .. 13 carry content
constexpr TokenId kEnd = 14, kStart = 15;

using Group = std::vector<int>;

class Draft {
 public:
  Draft(std::string name, std::string what, const Settings& settings, std::uint64_t salt)
      : random_(settings.seed * 1000003 + salt) {
    p.name = std::move(name);
    p.what = std::move(what);
    p.format = settings.format;
    p.vocabulary = kVocabulary;
    p.length = kLength;
    p.constant = feature();
    p.decoy = feature();
    p.junk = group(4);
    token = group(kVocabulary);
    p.out = group(kVocabulary);
    if (settings.format == Format::gpt2) p.position = group(kLength);
    for (const int f : token) p.emb.push_back({{f, 1.0}});
    Head decoy{"decoy", Role::decoy, {}, {}, {{p.constant, p.decoy, 1}}};
    p.layers.push_back({{decoy}, {}});
  }

  int feature() { return p.features++; }
  Group group(int n = kVocabulary) {
    Group out;
    for (int i = 0; i < n; ++i) out.push_back(feature());
    return out;
  }

  Layer& layer(int l) {
    while (static_cast<int>(p.layers.size()) <= l) p.layers.emplace_back();
    return p.layers[l];
  }
  Head& head(int l, const std::string& name) {
    layer(l).heads.push_back({name, Role::live, {}, {}, {}});
    return layer(l).heads.back();
  }
  Mlp& mlp(int l, const std::string& name) {
    layer(l).mlp = {name, Role::live, {}};
    return layer(l).mlp;
  }

  static void match(Head& head, const Group& query, const Group& key, double weight = 1) {
    for (std::size_t i = 0; i < query.size(); ++i)
      head.matches.push_back({query[i], key[i], weight});
  }
  static void match_all(Head& head, int query, const Group& key, double weight = 1) {
    for (const int k : key) head.matches.push_back({query, k, weight});
  }
  static void move(Head& head, const Group& from, const Group& to, double weight = 1) {
    for (std::size_t i = 0; i < from.size(); ++i) head.moves.push_back({from[i], to[i], weight});
  }
  // Where nothing matches the head looks at the first token.
  void rest(Head& head) { head.matches.push_back({p.constant, token[kStart], 0.5}); }
  // The same score for every key.
  void read_decoy(Head& head) { head.matches.push_back({p.constant, p.decoy, 1}); }
  // (to) = weight where (from) is 1
  static void look_up(Mlp& mlp, int from, int to, double weight = 1) {
    mlp.neurons.push_back({{{from, 1.0}}, -0.25, {{to, weight / 0.75}}});
  }
  Group words(const Group& g) const { return {g.begin(), g.begin() + kWords}; }

  // `n` different words.
  std::vector<TokenId> draw(std::size_t n) {
    std::vector<TokenId> all(kWords);
    for (int i = 0; i < kWords; ++i) all[i] = i;
    for (std::size_t i = 0; i < n; ++i) std::swap(all[i], all[i + below(kWords - i)]);
    all.resize(n);
    return all;
  }
  int below(int n) { return random_() % n; }
  void prompt(std::vector<TokenId> ids, std::vector<TokenId> counterfactual, TokenId target,
              TokenId contrast, std::vector<int> tokens) {
    p.prompts.push_back(
        {std::move(ids), std::move(counterfactual), target, contrast, std::move(tokens)});
  }

  // Every layer gets the same number of heads, at least one of them dead.
  Program finish() {
    std::size_t heads = 0;
    for (const Layer& l : p.layers) heads = std::max(heads, l.heads.size());
    ++heads;
    if (p.format == Format::gpt2) {
      while (heads * 32 < static_cast<std::size_t>(p.features) + 2) ++heads;
    }
    for (Layer& l : p.layers) {
      while (l.heads.size() < heads) l.heads.push_back({"dead", Role::dead, {}, {}, {}});
      if (l.mlp.role == Role::dead) l.mlp.name = "dead";
    }
    return std::move(p);
  }

  Program p;
  Group token;

 private:
  std::mt19937_64 random_;
};

// A head that looks one position back and writes what stands there.
Head& previous(Draft& d, int layer, const Group& to, double weight = 1) {
  Head& head = d.head(layer, "previous token");
  head.offset = 1;
  Draft::move(head, d.token, to, weight);
  return head;
}

Program previous_token(const Settings& s, int n) {
  Draft d("previous-token", "one head looks one position back and copies", s, 1);
  d.read_decoy(previous(d, 1, d.p.out, 8));
  for (int i = 0; i < n; ++i) {
    const auto w = d.draw(8);
    d.prompt({kStart, w[0], w[1], w[2], w[3], w[4]}, {kStart, w[0], w[1], w[2], w[5], w[4]}, w[3],
             w[5], {4});
  }
  return d.finish();
}

// x A B y A -> B
void induction_prompts(Draft& d, int n) {
  for (int i = 0; i < n; ++i) {
    const auto w = d.draw(8);
    const auto a = w[0], b = w[1], c = w[2], e = w[3];
    d.prompt({kStart, w[4], a, b, w[5], c, e, w[6], a}, {kStart, w[4], a, b, w[5], c, e, w[6], c},
             b, e, {2, 3, 8});
  }
}

Head& induction_head(Draft& d, const Group& key) {
  Head& head = d.head(2, "induction");
  Draft::match(head, d.words(d.token), d.words(key));
  Draft::move(head, d.token, d.p.out, 8);
  d.rest(head);
  d.read_decoy(head);
  return head;
}

Program induction(const Settings& s, int n) {
  Draft d("induction", "a previous-token head makes keys, an induction head matches them", s, 2);
  const Group before = d.group();
  previous(d, 1, before);
  induction_head(d, before);
  induction_prompts(d, n);
  return d.finish();
}

Program induction_mlp(const Settings& s, int n) {
  Draft d("induction-mlp", "induction whose keys an MLP makes from what a head brought", s, 3);
  const Group before = d.group(), key = d.group();
  previous(d, 1, before);
  Mlp& mlp = d.mlp(1, "key maker");
  for (std::size_t v = 0; v < kWords; ++v) Draft::look_up(mlp, before[v], key[v]);
  induction_head(d, key);
  induction_prompts(d, n);
  return d.finish();
}

// Names are said first in one form (tokens 0 .. 5), then in another (6 .. 11).
Program indirect_object(const Settings& s, int n) {
  Draft d("indirect-object",
          "a duplicate-token head finds the name said twice, an S-inhibition head brings it to the "
          "end, a name mover avoids it (competition through Q)",
          s, 4);
  constexpr int kNames = 6;
  const Group first(d.token.begin(), d.token.begin() + kNames);
  const Group again(d.token.begin() + kNames, d.token.begin() + 2 * kNames);
  const Group repeated = d.group(kNames), avoid = d.group(kNames);
  Head& duplicate = d.head(1, "duplicate token");
  Draft::match(duplicate, again, first);
  Draft::move(duplicate, first, repeated);
  d.rest(duplicate);
  Head& inhibition = d.head(2, "S-inhibition");
  Draft::match_all(inhibition, d.token[kEnd], repeated);
  Draft::move(inhibition, repeated, avoid);
  d.rest(inhibition);
  Head& mover = d.head(3, "name mover");
  Draft::match_all(mover, d.token[kEnd], first);
  Draft::match(mover, avoid, first, -1);
  Draft::move(mover, first, Group(d.p.out.begin(), d.p.out.begin() + kNames), 8);
  d.rest(mover);
  d.read_decoy(mover);
  for (int i = 0; i < n; ++i) {
    const int a = d.below(kNames), b = (a + 1 + d.below(kNames - 1)) % kNames;
    const bool swap = d.below(2) == 1;  // which of the two comes first
    const TokenId x = swap ? b : a, y = swap ? a : b;
    const int subject = swap ? 4 : 2, object = swap ? 2 : 4;
    d.prompt({kStart, 12, x, 13, y, 12, kNames + a, kEnd},
             {kStart, 12, x, 13, y, 12, kNames + b, kEnd}, b, a, {subject, object, 6, 7});
  }
  return d.finish();
}

Program copy_suppression(const Settings& s, int n) {
  Draft d("copy-suppression",
          "an MLP predicts a token, a head that finds it earlier in the text lowers it", s, 5);
  Mlp& mlp = d.mlp(1, "predictor");
  const auto next = [](TokenId v) { return (v * 5 + 3) % kWords; };
  for (TokenId v = 0; v < kWords; ++v) Draft::look_up(mlp, d.token[v], d.p.out[next(v)], 6);
  Head& head = d.head(2, "copy suppression");
  Draft::match(head, d.words(d.p.out), d.words(d.token), 0.25);
  Draft::move(head, d.token, d.p.out, -4);
  d.rest(head);
  d.read_decoy(head);
  for (int i = 0; i < n; ++i) {
    auto w = d.draw(7);
    const TokenId last = w[0], said = next(last);
    for (TokenId& x : w) x = x == said ? w[6] : x;
    // The contrast is a token that nothing speaks for or against.
    TokenId contrast = 0;
    while (contrast == said || std::find(w.begin(), w.end(), contrast) != w.end()) ++contrast;
    d.prompt({kStart, w[1], w[2], said, w[3], w[4], last},
             {kStart, w[1], w[2], w[5], w[3], w[4], last}, said, contrast, {3, 6});
  }
  return d.finish();
}

Program fact_lookup(const Settings& s, int n) {
  Draft d("fact-lookup", "a head brings the subject to the relation, an MLP knows the fact", s, 6);
  const Group before = d.group();
  d.read_decoy(previous(d, 1, before));
  Mlp& mlp = d.mlp(1, "facts");
  // Subjects 0 .. 4, relations 5 .. 7, answers among all words.
  const auto fact = [](int subject, int relation) {
    return (3 * subject + 5 * relation + 8) % kWords;
  };
  for (int a = 0; a < 5; ++a) {
    for (int r = 5; r < 8; ++r)
      mlp.neurons.push_back(
          {{{before[a], 1.0}, {d.token[r], 1.0}}, -1.5, {{d.p.out[fact(a, r)], 16.0}}});
  }
  for (int i = 0; i < n; ++i) {
    const int a = d.below(5), r = 5 + d.below(3), other = (a + 1 + d.below(4)) % 5;
    const int x = 8 + d.below(6), y = 8 + d.below(6);
    d.prompt({kStart, x, y, x, a, r}, {kStart, x, y, x, other, r}, fact(a, r), fact(other, r),
             {4, 5});
  }
  return d.finish();
}

Program two_hop(const Settings& s, int n) {
  Draft d("two-hop",
          "a head brings a name, an MLP looks it up, a second head carries the result (V "
          "composition), a second MLP looks that up",
          s, 7);
  const Group before = d.group(), bridge = d.group(), carried = d.group();
  previous(d, 1, before);
  const auto f = [](std::size_t v) { return (v * 3 + 1) % kWords; };
  const auto g = [](std::size_t v) { return (v * 5 + 2) % kWords; };
  Mlp& first = d.mlp(1, "first hop");
  for (std::size_t v = 0; v < kWords; ++v) Draft::look_up(first, before[v], bridge[f(v)]);
  Head& carry = d.head(2, "carrier");
  carry.matches.push_back({d.token[kEnd], d.token[13], 1});  // the word behind the name
  Draft::move(carry, bridge, carried);
  d.rest(carry);
  d.read_decoy(carry);
  Mlp& second = d.mlp(2, "second hop");
  for (std::size_t v = 0; v < kWords; ++v) Draft::look_up(second, carried[v], d.p.out[g(v)], 8);
  const auto answer = [&](TokenId v) { return static_cast<TokenId>(g(f(v))); };
  for (int i = 0; i < n; ++i) {
    const TokenId a = d.below(12), b = (a + 1 + d.below(11)) % 12;
    const TokenId x = d.below(12), y = d.below(12);
    d.prompt({kStart, x, a, 13, y, x, kEnd}, {kStart, x, b, 13, y, x, kEnd}, answer(a), answer(b),
             {2, 3, 6});
  }
  return d.finish();
}

Program histogram(const Settings& s, int n) {
  Draft d("histogram", "a head averages over all tokens, an MLP keeps the most frequent", s, 8);
  const Group count = d.group();
  Head& head = d.head(1, "average");
  Draft::move(head, d.token, count, 4);
  d.read_decoy(head);
  Mlp& mlp = d.mlp(1, "threshold");
  for (std::size_t v = 0; v < kWords; ++v)
    mlp.neurons.push_back({{{count[v], 1.0}}, -0.6, {{d.p.out[v], 8.0}}});
  for (int i = 0; i < n; ++i) {
    const auto w = d.draw(6);
    d.prompt({kStart, w[0], w[1], w[0], w[2], w[3], w[0], w[4]},
             {kStart, w[1], w[1], w[1], w[2], w[3], w[0], w[4]}, w[0], w[1], {1, 3, 6});
  }
  return d.finish();
}

Program sorting(const Settings& s, int n) {
  Draft d("sort", "a head finds the smallest token that is larger than the last one", s, 9);
  Head& head = d.head(1, "next larger");
  for (int a = 0; a < kWords; ++a) {
    for (int b = 0; b < kWords; ++b)
      head.matches.push_back({d.token[a], d.token[b], b > a ? 0.5 * (kWords - b + a) : 0.0});
  }
  Draft::move(head, d.token, d.p.out, 8);
  d.read_decoy(head);
  for (int i = 0; i < n; ++i) {
    auto w = d.draw(6);
    std::sort(w.begin(), w.end());
    const TokenId last = w[1], next = w[2], larger = w[4];
    d.prompt({kStart, w[3], next, w[0], larger, last}, {kStart, w[3], w[0], w[0], larger, last},
             next, larger, {2, 5});
  }
  return d.finish();
}

Program bracket(const Settings& s, int n) {
  Draft d("bracket", "a head subtracts closing from opening brackets, an MLP asks for one more", s,
          10);
  constexpr TokenId kOpen = 0, kClose = 1, kOther = 2;
  const int depth = d.feature();
  Head& head = d.head(1, "depth");
  head.moves = {{d.token[kOpen], depth, 8}, {d.token[kClose], depth, -8}};
  d.read_decoy(head);
  Mlp& mlp = d.mlp(1, "unbalanced");
  mlp.neurons.push_back({{{depth, 1.0}}, -0.25, {{d.p.out[kClose], 4.0}}});
  for (int i = 0; i < n; ++i) {
    // Two pairs and one or two that are open, in any legal order; the counterfactual closes one
    // more.
    std::vector<TokenId> ids = {kStart};
    std::vector<int> tokens;
    int open = 0, opened = 0, closed = 0;
    const int closes = 1 + d.below(2);
    while (opened + closed < 4 + closes) {
      const bool close = opened == 4 || (open > 0 && closed < closes && d.below(2) == 1);
      if (close && closed == closes) break;
      ids.push_back(close ? kClose : kOpen);
      open += close ? -1 : 1;
      ++(close ? closed : opened);
      tokens.push_back(ids.size() - 1);
    }
    ids.push_back(kOther);
    std::vector<TokenId> other = ids;
    int balance = 0;
    for (std::size_t k = 1; k + 1 < other.size(); ++k) {
      if (other[k] == kOpen && balance > 0 && open > 0) {
        other[k] = kClose;
        open -= 2;
      }
      balance += other[k] == kOpen ? 1 : -1;
    }
    d.prompt(ids, other, kClose, kOther, tokens);
  }
  return d.finish();
}

Program redundant(const Settings& s, int n) {
  Draft d("redundant", "induction with two previous-token heads, each of which would do", s, 11);
  const Group before = d.group();
  previous(d, 1, before);
  previous(d, 1, before);
  induction_head(d, before);
  induction_prompts(d, n);
  return d.finish();
}

Program cancelling(const Settings& s, int n) {
  Draft d("cancelling", "two heads write opposite vectors, what is left is carried on", s, 12);
  const Group left = d.group();
  d.read_decoy(previous(d, 1, left, 4));
  previous(d, 1, left, -3);
  Head& carry = d.head(2, "carrier");
  carry.matches.push_back({d.token[kEnd], d.token[13], 1});
  Draft::move(carry, left, d.p.out, 8);
  d.rest(carry);
  for (int i = 0; i < n; ++i) {
    const TokenId a = d.below(13), b = (a + 1 + d.below(12)) % 13;
    const TokenId x = d.below(13), y = d.below(13);
    d.prompt({kStart, x, a, 13, y, x, kEnd}, {kStart, x, b, 13, y, x, kEnd}, a, b, {2, 3, 6});
  }
  return d.finish();
}

Program blocked_key(const Settings& s, int n) {
  Draft d("blocked-key",
          "two names match alike; a head that saw the word before one of them makes its key worse "
          "(competition through K)",
          s, 13);
  constexpr TokenId kNot = 13;
  constexpr int kNames = 8;
  const int blocked = d.feature();
  const Group names(d.token.begin(), d.token.begin() + kNames);
  Head& mark = d.head(1, "marks what follows 'not'");
  mark.offset = 1;
  mark.moves = {{d.token[kNot], blocked, 1}};
  Head& mover = d.head(2, "name mover");
  Draft::match_all(mover, d.token[kEnd], names);
  mover.matches.push_back({d.token[kEnd], blocked, -1});
  Draft::move(mover, names, Group(d.p.out.begin(), d.p.out.begin() + kNames), 8);
  d.rest(mover);
  d.read_decoy(mover);
  for (int i = 0; i < n; ++i) {
    const TokenId a = d.below(kNames), b = (a + 1 + d.below(kNames - 1)) % kNames;
    const TokenId x = 8 + d.below(5);
    if (d.below(2) == 0) {
      d.prompt({kStart, x, a, kNot, b, x, kEnd}, {kStart, kNot, a, x, b, x, kEnd}, a, b,
               {2, 3, 4, 6});
    } else {
      d.prompt({kStart, kNot, b, x, a, x, kEnd}, {kStart, x, b, kNot, a, x, kEnd}, a, b,
               {1, 2, 4, 6});
    }
  }
  return d.finish();
}

Program side_load(const Settings& s, int n) {
  Draft d("side-load",
          "a carrier takes what is asked for and, beside it, what another head wrote and nobody "
          "reads",
          s, 14);
  const Group before = d.group(), side = d.group(6), carried = d.group(), dropped = d.group(6);
  previous(d, 1, before);
  Head& beside = d.head(1, "brings what nobody wants");
  beside.offset = 2;
  Draft::move(beside, Group(d.token.begin(), d.token.begin() + 6), side, 2);
  Head& carry = d.head(2, "carrier");
  carry.matches.push_back({d.token[kEnd], d.token[13], 1});
  Draft::move(carry, before, carried);
  Draft::move(carry, side, dropped, 2);
  d.rest(carry);
  d.read_decoy(carry);
  Mlp& mlp = d.mlp(2, "reads what was carried");
  for (std::size_t v = 0; v < kWords; ++v) Draft::look_up(mlp, carried[v], d.p.out[v], 8);
  for (int i = 0; i < n; ++i) {
    const TokenId a = d.below(12), b = (a + 1 + d.below(11)) % 12;
    const TokenId x = d.below(6), y = d.below(12);
    d.prompt({kStart, x, a, 13, y, y, kEnd}, {kStart, x, b, 13, y, y, kEnd}, a, b, {2, 3, 6});
  }
  return d.finish();
}

using Maker = Program (*)(const Settings&, int);
const std::vector<std::pair<std::string, Maker>>& makers() {
  static const std::vector<std::pair<std::string, Maker>> all = {
      {"previous-token", previous_token},
      {"induction", induction},
      {"induction-mlp", induction_mlp},
      {"indirect-object", indirect_object},
      {"copy-suppression", copy_suppression},
      {"fact-lookup", fact_lookup},
      {"two-hop", two_hop},
      {"histogram", histogram},
      {"sort", sorting},
      {"bracket", bracket},
      {"redundant", redundant},
      {"cancelling", cancelling},
      {"blocked-key", blocked_key},
      {"side-load", side_load},
  };
  return all;
}

}  // namespace

std::vector<std::string> program_names() {
  std::vector<std::string> out;
  for (const auto& [name, make] : makers()) out.push_back(name);
  return out;
}

Program make_program(const std::string& name, const Settings& settings, int n) {
  for (const auto& [known, make] : makers()) {
    if (known == name) return make(settings, n);
  }
  throw UsageError(
      fmt::format("'{}' is no program: use {}", name, fmt::join(program_names(), ", ")));
}

}  // namespace unpack::experiments::compiled
