#include "experiments/compiled/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "unpack/error.h"

namespace unpack::experiments::compiled {

namespace {

using Features = std::set<int>;

struct Component {
  const Head* head = nullptr;
  const Mlp* mlp = nullptr;
  int layer = 0;
  Role role() const { return head ? head->role : mlp->role; }
};

Component component(const Program& program, const std::string& name) {
  for (std::size_t l = 0; l < program.layers.size(); ++l) {
    const Layer& layer = program.layers[l];
    if (name == fmt::format("MLP{}", l)) return {nullptr, &layer.mlp, static_cast<int>(l)};
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      if (name == fmt::format("A{}.H{}", l, h))
        return {&layer.heads[h], nullptr, static_cast<int>(l)};
    }
  }
  throw InternalError("no component " + name);
}

Features written(const Program& program, const std::string& writer) {
  Features out;
  if (writer == "emb") {
    out.insert(program.constant);
    for (const auto& token : program.emb) {
      for (const auto& [feature, weight] : token) out.insert(feature);
    }
    return out;
  }
  if (writer == "pos") return {program.position.begin(), program.position.end()};
  const Component c = component(program, writer);
  if (c.role() == Role::dead) return {program.junk.begin(), program.junk.end()};
  if (c.head) {
    for (const Move& move : c.head->moves) out.insert(move.to);
  } else {
    for (const Neuron& neuron : c.mlp->neurons) {
      for (const auto& [feature, weight] : neuron.out) out.insert(feature);
    }
  }
  return out;
}

bool any(const std::vector<std::pair<int, double>>& writes, const Features& useful) {
  return std::any_of(writes.begin(), writes.end(),
                     [&](const auto& write) { return useful.contains(write.first); });
}

bool any(const std::vector<Move>& moves, const Features& useful) {
  return std::any_of(moves.begin(), moves.end(),
                     [&](const Move& move) { return useful.contains(move.to); });
}

// Features that the answer depends on: those the target reads, and whatever a component needs that
// writes one of them.
Features useful_features(const Program& program) {
  Features useful(program.out.begin(), program.out.end());
  for (std::size_t before = 0; before != useful.size();) {
    before = useful.size();
    for (const Layer& layer : program.layers) {
      for (const Head& head : layer.heads) {
        if (head.role != Role::live || !any(head.moves, useful)) continue;
        for (const Match& match : head.matches) {
          if (match.key != program.decoy) useful.insert({match.query, match.key});
        }
        for (const Move& move : head.moves) {
          if (useful.contains(move.to)) useful.insert(move.from);
        }
      }
      for (const Neuron& neuron : layer.mlp.neurons) {
        if (!any(neuron.out, useful)) continue;
        for (const auto& [feature, weight] : neuron.in) useful.insert(feature);
      }
    }
  }
  return useful;
}

// What a live reader takes in on a branch on the way to the answer.
Features read(const Program& program, const std::string& reader, Branch branch) {
  Features out;
  if (reader == "target") return {program.out.begin(), program.out.end()};
  const Component c = component(program, reader);
  const Features useful = useful_features(program);
  if (c.mlp) {
    for (const Neuron& neuron : c.mlp->neurons) {
      if (!any(neuron.out, useful)) continue;
      if (branch == Branch::U || (neuron.bias != 0 && branch == Branch::G))
        out.insert(program.constant);
      if (branch == Branch::U) continue;
      for (const auto& [feature, weight] : neuron.in) out.insert(feature);
    }
    return out;
  }
  if (!any(c.head->moves, useful)) return out;
  if (branch == Branch::V) {
    for (const Move& move : c.head->moves) {
      if (useful.contains(move.to)) out.insert(move.from);
    }
    return out;
  }
  for (const Match& match : c.head->matches)
    out.insert(branch == Branch::K ? match.key : match.query);
  if (c.head->offset) {
    if (program.position.empty()) {
      out.insert(program.constant);
    } else {
      out.insert(program.position.begin(), program.position.end());
    }
  }
  return out;
}

}  // namespace

const char* to_string(Format format) { return format == Format::gpt2 ? "gpt2" : "llama"; }

std::string to_string(const EdgeName& edge) {
  const std::string branch = unpack::to_string(edge.branch);
  return branch.empty() || edge.branch == Branch::mlp
             ? fmt::format("{} -> {}", edge.writer, edge.reader)
             : fmt::format("{} -[{}]-> {}", edge.writer, branch, edge.reader);
}

Truth Program::truth(const EdgeName& edge) const {
  if (edge.reader != "target" && component(*this, edge.reader).role() != Role::live)
    return Truth::no;
  if (edge.writer != "emb" && edge.writer != "pos" &&
      component(*this, edge.writer).role() != Role::live)
    return Truth::no;
  const Features from = written(*this, edge.writer);
  Truth truth = Truth::no;
  for (const int feature : read(*this, edge.reader, edge.branch)) {
    if (!from.contains(feature)) continue;
    if (feature != constant) return Truth::yes;
    truth = Truth::neutral;
  }
  return truth;
}

bool Program::from_dead(const EdgeName& edge) const {
  return edge.writer != "emb" && edge.writer != "pos" &&
         component(*this, edge.writer).role() == Role::dead;
}

bool Program::from_decoy(const EdgeName& edge) const {
  return edge.writer != "emb" && edge.writer != "pos" &&
         component(*this, edge.writer).role() == Role::decoy;
}

std::vector<EdgeName> Program::edges() const {
  std::vector<std::string> writers = {"emb"};
  if (!position.empty()) writers.emplace_back("pos");
  std::vector<EdgeName> all;
  const auto add = [&](const std::string& reader, std::initializer_list<Branch> branches) {
    for (const Branch branch : branches) {
      for (const std::string& writer : writers) all.push_back({writer, reader, branch});
    }
  };
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::vector<std::string> heads;
    for (std::size_t h = 0; h < layers[l].heads.size(); ++h)
      heads.push_back(fmt::format("A{}.H{}", l, h));
    for (const std::string& head : heads) add(head, {Branch::K, Branch::Q, Branch::V});
    writers.insert(writers.end(), heads.begin(), heads.end());
    const std::string mlp = fmt::format("MLP{}", l);
    if (format == Format::gpt2) {
      add(mlp, {Branch::mlp});
    } else {
      add(mlp, {Branch::G, Branch::U});
    }
    writers.push_back(mlp);
  }
  add("target", {Branch::none});
  return all;
}

}  // namespace unpack::experiments::compiled
