#include "experiments/compiled/methods.h"

#include <algorithm>
#include <cmath>

#include "unpack/baselines.h"
#include "unpack/error.h"

namespace unpack::experiments::compiled {

namespace {

struct Ours {
  const char* name;
  const char* what;
  void (*set)(Options& options);
};

void read_centered(Options& o) {
  o.direction = Direction::read;
  o.scores = Scores::centered;
}

constexpr Ours kOurs[] = {
    {"paper", "the paper's settings", [](Options&) {}},
    {"centered", "centered scores", [](Options& o) { o.scores = Scores::centered; }},
    {"beta 0", "no floor", [](Options& o) { o.beta = 0; }},
    {"beta 0.2", "a lower floor", [](Options& o) { o.beta = 0.2; }},
    {"gate", "gate dispatch", [](Options& o) { o.dispatch = Dispatch::gate; }},
    {"linearized", "linearized MLPs", [](Options& o) { o.mlp = MlpRule::linearized; }},
    {"released", "the authors' program", [](Options& o) { o = preset_options("released"); }},
    {"weights 1,0,0", "keys alone",
     [](Options& o) {
       o.weights = {1, 0, 0};
     }},
    {"weights 0,0,1", "values alone",
     [](Options& o) {
       o.weights = {0, 0, 1};
     }},
    {"read", "direction read, raw scores", [](Options& o) { o.direction = Direction::read; }},
    {"read, centered", "direction read, centered scores", read_centered},
    {"read, floor", "the same with a floor of one logit",
     [](Options& o) {
       read_centered(o);
       o.floor = 1;
     }},
    {"read, spread", "the same with key credit spread",
     [](Options& o) {
       read_centered(o);
       o.floor = 1;
       o.keys = Keys::spread;
     }},
    {"best", "the same with beta 0.2", [](Options& o) { o = preset_options("best"); }},
};

std::vector<double> to_edges(const Program& program, const std::map<EdgeName, double>& credit) {
  std::vector<double> out;
  for (const EdgeName& edge : program.edges()) {
    const auto found = credit.find(edge);
    out.push_back(found == credit.end() ? 0.0 : found->second);
  }
  return out;
}

Answer ours(const Program& program, const Prepared& prepared, const Prompt& prompt,
            const Options& options, const RunContext& context) {
  Question question;
  question.target.ids = {prompt.target};
  question.target.versus = std::vector<TokenId>{prompt.contrast};
  question.options = options;
  question.paths.top = 0;
  const Writers& writers = prepared.model().writers();
  std::map<EdgeName, double> credit;
  double first = 0;
  for (const EdgeCredit& edge : prepared.edge_credit(question, context)) {
    if (edge.reader < 0) first += std::fabs(edge.credit);
    credit[{writers.name(edge.writer), edge.reader < 0 ? "target" : writers.name(edge.reader),
            edge.branch}] = edge.credit;
  }
  Answer answer{to_edges(program, credit), prepared.trace(question, context).token_credit};
  for (double& x : answer.edges) x /= first > 0 ? first : 1.0;
  return answer;
}

double along(const Rows& from, const Rows& clean, const Rows& gradient) {
  double sum = 0;
  for (std::size_t s = 0; s < gradient.size(); ++s) {
    for (std::size_t i = 0; i < gradient[s].size(); ++i)
      sum += (from[s][i] - clean[s][i]) * gradient[s][i];
  }
  return sum;
}

int writer_index(const PlainModel& plain, const std::string& name) {
  for (int w = 0; w < plain.writers(); ++w) {
    if (plain.name(w) == name) return w;
  }
  throw InternalError("no writer " + name);
}

// All that compare with the counterfactual: what the difference falls by when an edge carries the
// other prompt's value, exactly or by a gradient.
class Patching {
 public:
  Patching(const Program& program, const PlainModel& plain, const Prompt& prompt)
      : program_(program), plain_(plain), prompt_(prompt) {
    RunOptions options;
    options.gradients = true;
    clean_ = plain.run(prompt.ids, prompt.target, prompt.contrast, options);
    other_ = plain.run(prompt.counterfactual, prompt.target, prompt.contrast);
    scale_ = std::fabs(clean_.difference - other_.difference);
    if (scale_ == 0) scale_ = 1;
  }

  const Run& clean() const { return clean_; }

  Answer exact(const RunContext& context) const {
    Answer answer;
    for (const EdgeName& edge : program_.edges()) {
      context.check();
      const std::size_t w = writer_index(plain_, edge.writer);
      Rows change = other_.writers[w];
      double size = 0;
      for (std::size_t s = 0; s < change.size(); ++s) {
        for (std::size_t i = 0; i < change[s].size(); ++i) {
          change[s][i] -= clean_.writers[w][s][i];
          size = std::max(size, std::fabs(change[s][i]));
        }
      }
      double effect = 0;
      if (size > 0) {
        const Port port = plain_.port(edge);
        RunOptions options;
        options.port = &port;
        options.change = &change;
        effect = clean_.difference -
                 plain_.run(prompt_.ids, prompt_.target, prompt_.contrast, options).difference;
      }
      answer.edges.push_back(effect / scale_);
    }
    const Rows own = plain_.embeddings(prompt_.ids),
               others = plain_.embeddings(prompt_.counterfactual);
    for (std::size_t s = 0; s < own.size(); ++s) {
      Rows mixed = own;
      mixed[s] = others[s];
      RunOptions options;
      options.input = &mixed;
      answer.tokens.push_back(
          prompt_.ids[s] == prompt_.counterfactual[s]
              ? 0.0
              : (clean_.difference -
                 plain_.run(prompt_.ids, prompt_.target, prompt_.contrast, options).difference) /
                    scale_);
    }
    return answer;
  }

  // steps: 1: the gradient at the prompt itself; more: the mean on the way from the other one.
  Answer gradients(int steps) const {
    std::map<Port, Rows> mean;
    const Rows own = plain_.embeddings(prompt_.ids),
               others = plain_.embeddings(prompt_.counterfactual);
    if (steps == 1) {
      mean = clean_.gradient;
    } else {
      for (int step = 1; step <= steps; ++step) {
        Rows mixed = own;
        const double part = static_cast<double>(step) / steps;
        for (std::size_t s = 0; s < own.size(); ++s) {
          for (std::size_t i = 0; i < own[s].size(); ++i)
            mixed[s][i] = others[s][i] + part * (own[s][i] - others[s][i]);
        }
        RunOptions options;
        options.gradients = true;
        options.input = &mixed;
        const Run run = plain_.run(prompt_.ids, prompt_.target, prompt_.contrast, options);
        for (const auto& [port, rows] : run.gradient) {
          Rows& to = mean[port];
          if (to.empty()) to.assign(rows.size(), std::vector<double>(rows[0].size(), 0.0));
          for (std::size_t s = 0; s < rows.size(); ++s) {
            for (std::size_t i = 0; i < rows[s].size(); ++i) to[s][i] += rows[s][i] / steps;
          }
        }
      }
    }
    Answer answer;
    for (const EdgeName& edge : program_.edges()) {
      const std::size_t w = writer_index(plain_, edge.writer);
      answer.edges.push_back(
          -along(other_.writers[w], clean_.writers[w], mean.at(plain_.port(edge))) / scale_);
    }
    const Rows& input = mean.at(kInputPort);
    for (std::size_t s = 0; s < own.size(); ++s)
      answer.tokens.push_back(-along({others[s]}, {own[s]}, {input[s]}) / scale_);
    return answer;
  }

 private:
  const Program& program_;
  const PlainModel& plain_;
  const Prompt& prompt_;
  Run clean_, other_;
  double scale_ = 1;
};

// Information flow routes carried to writers: proximity of each writer to the stream its reader
// sees. The method knows no keys and queries.
class Routes {
 public:
  Routes(const Program& program, const PlainModel& plain, const Run& run)
      : program_(program), plain_(plain), run_(run), length_(run.writers[0].size()) {}

  Answer edges() {
    std::map<EdgeName, double> credit;
    std::vector<std::vector<double>> held(plain_.writers(), std::vector<double>(length_, 0.0));
    const auto share = [&](int visible, std::size_t s, double amount, const std::string& reader,
                           Branch branch) {
      if (amount == 0) return;
      const std::vector<double> part = proximities(visible, s);
      for (int w = 0; w < visible; ++w) {
        const double got = amount * part[w];
        credit[{plain_.name(w), reader, branch}] += got;
        held[w][s] += got;
      }
    };
    const CompiledModel& m = plain_.model();
    share(plain_.writers(), length_ - 1, 1.0, "target", Branch::none);
    for (int l = m.n_layers() - 1; l >= 0; --l) {
      const int mlp = plain_.mlp(l);
      for (std::size_t s = 0; s < length_; ++s)
        share(mlp, s, held[mlp][s], plain_.name(mlp),
              m.format == Format::gpt2 ? Branch::mlp : Branch::G);
      for (int h = 0; h < m.n_heads; ++h) {
        const int head = plain_.head(l, h);
        for (std::size_t q = 0; q < length_; ++q) {
          const double amount = held[head][q];
          if (amount == 0) continue;
          const std::vector<double> sources = entries(l, h, q);
          for (std::size_t s = 0; s <= q; ++s)
            share(plain_.head(l, 0), s, amount * sources[s], plain_.name(head), Branch::V);
        }
      }
    }
    return {to_edges(program_, credit), {}};
  }

 private:
  static double norm(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += std::fabs(v);
    return sum;
  }
  static double proximity(const std::vector<double>& whole, const std::vector<double>& part,
                          double size = 1) {
    double rest = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) rest += std::fabs(whole[i] - size * part[i]);
    return std::max(norm(whole) - rest, 0.0);
  }
  static void normalize(std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += v;
    for (double& v : x) v = sum > 0 ? v / sum : 0.0;
  }

  std::vector<double> proximities(int visible, std::size_t s) const {
    std::vector<double> whole(run_.writers[0][s].size(), 0.0), out;
    for (int w = 0; w < visible; ++w) {
      for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += run_.writers[w][s][i];
    }
    for (int w = 0; w < visible; ++w) out.push_back(proximity(whole, run_.writers[w][s]));
    normalize(out);
    return out;
  }

  std::vector<double> entries(int l, int h, std::size_t q) const {
    const std::size_t ls = l, hs = h;
    const std::vector<double>& whole = run_.writers[plain_.head(l, h)][q];
    std::vector<double> out;
    for (std::size_t s = 0; s <= q; ++s)
      out.push_back(proximity(whole, run_.value[ls][hs][s], run_.pattern[ls][hs][q][s]));
    normalize(out);
    return out;
  }

  const Program& program_;
  const PlainModel& plain_;
  const Run& run_;
  std::size_t length_;
};

}  // namespace

std::vector<MethodName> method_names() {
  std::vector<MethodName> out;
  for (const Ours& o : kOurs) out.push_back({o.name, o.what, true});
  out.push_back({"IFR", "information flow routes", false});
  out.push_back({"patching", "exact patching of every edge from the counterfactual", false});
  out.push_back({"EAP", "edge attribution patching", false});
  out.push_back({"EAP-IG 5", "integrated, 5 steps", false});
  out.push_back({"EAP-IG 20", "integrated, 20 steps", false});
  out.push_back({"DLA", "direct logit attribution", false});
  return out;
}

Options method_options(const std::string& name) {
  Options options;
  for (const Ours& o : kOurs) {
    if (name == o.name) o.set(options);
  }
  return options;
}

std::map<std::string, Answer> ask_all(const Program& program, const Model& model,
                                      const PlainModel& plain, const Prompt& prompt,
                                      const RunContext& context) {
  std::map<std::string, Answer> out;
  const Prepared prepared = model.prepare(prompt.ids, context);
  for (const Ours& o : kOurs)
    out[o.name] = ours(program, prepared, prompt, method_options(o.name), context);
  const Patching patching(program, plain, prompt);
  out["patching"] = patching.exact(context);
  out["EAP"] = patching.gradients(1);
  out["EAP-IG 5"] = patching.gradients(5);
  out["EAP-IG 20"] = patching.gradients(20);
  out["IFR"] = Routes(program, plain, patching.clean()).edges();
  out["IFR"].tokens = ifr_scores(prepared, prompt.ids.size() - 1).token;
  Answer& direct = out["DLA"];
  const Answer& paper = out["paper"];
  const std::vector<EdgeName> edges = program.edges();
  for (std::size_t i = 0; i < edges.size(); ++i)
    direct.edges.push_back(edges[i].reader == "target" ? paper.edges[i] : 0.0);
  return out;
}

}  // namespace unpack::experiments::compiled
