// A hand-made trace that looks like a real one: names at the end of a sentence, credit that reaches
// a few tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "unpack/result.h"

namespace unpack::test {

struct TraceShape {
  int layers = 12;
  int heads = 12;
  std::size_t paths = 20;
  bool rooted = false;
  bool gated = false;
  std::vector<std::string> texts = {"<|endoftext|>", "Mary", " and",   " John", " went",
                                    " to",           " the", " store", ".",     " John",
                                    " gave",         " a",   " drink", " to"};
};

inline std::vector<Token> make_tokens(const std::vector<std::string>& texts) {
  std::vector<Token> tokens;
  for (std::size_t s = 0; s < texts.size(); ++s)
    tokens.push_back({static_cast<int>(s), static_cast<TokenId>(100 + s), texts[s]});
  return tokens;
}

// A path that climbs from a token to the last position, in layers that only go up.
inline Path random_path(const TraceResult& r, const Writers& writers, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(std::max(n, 1)));
  };
  const int last = r.length() - 1;
  Path path;
  const std::vector<int> favourites = {1, 3, 9, last};
  int position = below(3) ? std::min(favourites[below(4)], last) : below(r.length());
  path.nodes.push_back({r.layout.has_pos_writer() && below(8) == 0 ? 1 : 0, position});
  path.branches.push_back(Branch::none);
  int layer = 0;
  if (below(3)) {
    path.nodes.push_back({writers.mlp(0), position});
    path.branches.push_back(r.layout.gated() ? Branch::G : Branch::mlp);
    layer = 1;
  }
  const int hops = 1 + below(3);
  for (int hop = 0; hop < hops && layer < r.layout.n_layers; ++hop) {
    layer += below(std::max(1, (r.layout.n_layers - layer) / 2));
    const bool arrives = hop + 1 == hops;
    const int to = arrives ? last : position + below(last - position + 1);
    const Branch branch = to != position ? (below(3) ? Branch::V : Branch::K)
                                         : std::vector{Branch::K, Branch::Q, Branch::V}[below(3)];
    path.nodes.push_back({writers.head(layer, below(4) % r.layout.n_heads), to});
    path.branches.push_back(branch);
    position = to;
    ++layer;
  }
  if (layer < r.layout.n_layers && below(3) == 0) {
    path.nodes.push_back({writers.mlp(layer), position});
    path.branches.push_back(r.layout.gated() ? Branch::U : Branch::mlp);
  }
  return path;
}

inline TraceResult make_trace(const TraceShape& shape = {}) {
  std::mt19937 random(7);
  const auto uniform = [&] { return static_cast<double>(random() % 100000) / 100000.0; };
  TraceResult r;
  r.program = {"0.1.0", "cpu", 2};
  r.model = {"pocket-gpt2", "gpt2",      "f32", "0123456789abcdef",
             shape.layers,  shape.heads, 64,    shape.gated};
  r.layout.family = shape.gated ? "llama" : "gpt2";
  r.layout.n_layers = shape.layers;
  r.layout.n_heads = shape.heads;
  r.layout.n_kv_heads = shape.heads;
  LayerConfig layer;
  layer.mlp = shape.gated ? MlpKind::gated : MlpKind::plain;
  r.layout.layers.assign(shape.layers, layer);
  r.layout.positions = shape.gated ? Positions::rotary : Positions::learned;
  r.tokens = make_tokens(shape.texts);
  const int length = r.length();
  const Writers writers = r.writer_table();
  r.target.position = length - 1;
  r.target.ids = {500};
  r.target.versus_ids = std::vector<TokenId>{501};
  r.target.text = " Mary";
  r.target.versus_text = " John";
  r.target.logit = 12.25;
  r.target.logit_difference = 3.5;
  r.target.probability = 0.612;
  const std::vector<std::string> next = {" Mary", " the",  " John", " her",      " a",
                                         " him",  " them", " his",  " everyone", "\n"};
  double probability = 0.612;
  for (std::size_t i = 0; i < next.size(); ++i) {
    r.predictions.push_back({static_cast<TokenId>(500 + (i == 0 ? 0 : i + 1)), next[i],
                             12.25 - static_cast<double>(i), probability});
    probability *= 0.42;
  }
  for (int w = 0; w < writers.count(); ++w) r.writers.push_back(writers.name(w));
  r.importance.assign(r.writers.size(), 0);
  r.node_credit.assign(r.writers.size(), std::vector<double>(r.tokens.size(), 0));

  for (std::size_t i = 0; i < shape.paths; ++i) {
    Path path = random_path(r, writers, random);
    path.credit = (uniform() < 0.3 ? -1 : 1) * 0.8 / std::pow(1.0 + static_cast<double>(i), 0.7);
    for (const Node& node : path.nodes) r.node_credit[node.writer][node.position] += path.credit;
    r.importance[path.nodes.back().writer] += path.credit;
    r.paths.push_back(std::move(path));
  }
  for (std::size_t w = 0; w < r.writers.size(); ++w) {
    for (double& x : r.node_credit[w]) x += 0.02 * (uniform() - 0.5);
  }
  r.token_credit.assign(r.tokens.size(), 0);
  for (const Path& path : r.paths) r.token_credit[path.nodes.front().position] += path.credit;
  for (double& x : r.token_credit) x += 0.05 * (uniform() - 0.5);
  double positive = 0;
  for (const double x : r.token_credit) positive += std::max(x, 0.0);
  for (const double x : r.token_credit)
    r.token_percent.push_back(positive > 0 ? 100 * x / positive : 0);
  for (Path& path : r.paths) {
    path.percent = positive > 0 ? 100 * path.credit / positive : 0;
    r.coverage.absolute += std::abs(path.credit);
  }
  r.coverage.paths = r.paths.size();
  r.coverage.absolute_matching = r.coverage.absolute * 2;
  r.coverage.absolute_total = r.coverage.absolute * 2.5;
  r.conservation_first = 3.4;
  for (const double x : r.token_credit) r.conservation_reached += x;

  if (shape.rooted) {
    // Every path is made to end in the root, as a rerooted trace lists them.
    const Node root{writers.head(shape.layers - 1, 1), length - 1};
    r.root = root;
    for (Path& path : r.paths) {
      while (path.nodes.size() > 1 && writers[path.nodes.back().writer].layer >= shape.layers - 1) {
        path.nodes.pop_back();
        path.branches.pop_back();
      }
      path.nodes.push_back(root);
      path.branches.push_back(Branch::V);
    }
    for (const Branch branch : {Branch::K, Branch::Q, Branch::V}) {
      auto& rows = r.incoming[branch];
      rows.assign(r.writers.size(), std::vector<double>(r.tokens.size(), 0));
      rows[0][std::min<std::size_t>(1, r.tokens.size() - 1)] = 0.25;
      rows[writers.mlp(0)].back() = -0.125;
      r.composition[branch] = {{writers.mlp(0), 0.5, 0.25}, {0, 0.25, 0.125}};
    }
    r.composition[Branch::none] = {{writers.mlp(0), 1.5, 0.75}, {0, 0.75, 0.375}};
    for (int s = 0; s < length; ++s) r.entries.push_back(s == 1 ? 0.7 : 0.3 / length);
  }
  return r;
}

}  // namespace unpack::test
