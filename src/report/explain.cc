#include "unpack/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "report/json.h"
#include "report/labels.h"
#include "report/text.h"
#include "unpack/inspect.h"
#include "unpack/json.h"
#include "unpack/reads.h"

namespace unpack {

using namespace report;

namespace {

constexpr int kEffects = 8;         // tokens that count as promoted or lowered
constexpr double kFocused = 0.35;   // from this share of the attention on a head "looks at" a token
constexpr double kDirect = 0.3;     // of its credit, from which on what it writes is named
constexpr double kMainFeed = 0.05;  // a feeder is named from this share of its branch on

struct Feed {
  Node node;
  double credit = 0;
};

class Explainer {
 public:
  Explainer(const Prepared& prepared, const Question& question, const TraceResult& trace,
            const RunContext& context)
      : prepared_(prepared),
        writers_(prepared.model().writers()),
        question_(question),
        trace_(trace),
        context_(context) {}

  std::string about(const Node& node) const {
    Question closer = question_;
    closer.root = to_string(writers_, node);
    closer.paths = PathQuery();
    const TraceResult rooted = node_reads(prepared_, closer, context_);
    if (writers_[node.writer].kind == WriterKind::mlp) return mlp(node, rooted);
    return head(node, rooted, writing(prepared_, node, kEffects));
  }

 private:
  // ·Mary, with its position where the prompt has the same token twice.
  std::string token(int position) const {
    const Token& token = trace_.tokens.at(position);
    const auto same = std::count_if(trace_.tokens.begin(), trace_.tokens.end(),
                                    [&](const Token& other) { return other.id == token.id; });
    return spelled(token.text) + (same > 1 ? fmt::format(" ({})", position) : "");
  }

  static std::string spelled(const std::string& text) {
    std::string out;
    std::size_t blanks = 0;
    while (blanks < text.size() && text[blanks] == ' ') ++blanks;
    for (std::size_t i = 0; i < blanks; ++i) out += "·";
    return out + visible(std::string_view(text).substr(blanks), {true});
  }

  std::string place(const Node& node) const {
    return fmt::format("{} at {}", writers_.name(node.writer), token(node.position));
  }

  // What of the whole went through it; credit 1 on a root says nothing.
  std::string credit_of(const Node& node) const {
    if (trace_.root == node) return ".";
    const double credit = trace_.node_credit.at(node.writer).at(node.position);
    return fmt::format("; credit {}.", signed_number(credit));
  }

  static bool same_word(const std::string& a, const std::string& b) {
    const auto bare = [](std::string_view text) {
      while (text.starts_with(' ')) text.remove_prefix(1);
      return text;
    };
    return !bare(a).empty() && bare(a) == bare(b);
  }

  static bool holds(const std::vector<TokenEffect>& effects, const std::string& text) {
    return std::any_of(effects.begin(), effects.end(),
                       [&](const TokenEffect& effect) { return same_word(effect.text, text); });
  }

  // The strongest writer of a branch, of those at one position where one is given.
  std::optional<Feed> strongest(const TraceResult& rooted, Branch branch,
                                std::optional<int> position) const {
    const auto found = rooted.incoming.find(branch);
    if (found == rooted.incoming.end()) return std::nullopt;
    Feed best;
    double total = 0;
    for (std::size_t w = 0; w < found->second.size(); ++w) {
      for (std::size_t s = 0; s < found->second[w].size(); ++s) {
        const double credit = found->second[w][s];
        total += std::abs(credit);
        if (position && *position != static_cast<int>(s)) continue;
        if (std::abs(credit) > std::abs(best.credit))
          best = {{static_cast<int>(w), static_cast<int>(s)}, credit};
      }
    }
    if (!(std::abs(best.credit) > kMainFeed * total)) return std::nullopt;
    return best;
  }

  std::string feeder(const Feed& feed) const {
    const WriterKind kind = writers_[feed.node.writer].kind;
    if (kind == WriterKind::emb)
      return fmt::format("the token {} itself", token(feed.node.position));
    if (kind == WriterKind::pos) return fmt::format("position {}", feed.node.position);
    return place(feed.node);
  }

  // Whether a good part of its credit comes from what it writes to the output itself.
  bool speaks(const Node& node) const {
    const std::size_t writer = node.writer;
    if (trace_.root || node.position != trace_.target.position) return false;
    const double credit = trace_.node_credit.at(writer).at(node.position);
    return std::abs(trace_.importance.at(writer)) >= kDirect * std::abs(credit);
  }

  // What it does to the question itself.
  std::string effect(const Node& node) const {
    const double direct = trace_.importance.at(node.writer);
    std::string text =
        (direct < 0 ? "writes against " : "writes in favour of ") + spelled(trace_.target.text);
    if (trace_.target.versus_text) text += " rather than " + spelled(*trace_.target.versus_text);
    return text;
  }

  std::string head(const Node& node, const TraceResult& rooted, const Writing& written) const {
    const Writer& writer = writers_[node.writer];
    const CachedArray pattern = prepared_.cache("pattern", writer.layer);  // [H, S, S]
    const std::ptrdiff_t length = prepared_.length();
    const auto begin = pattern.values.begin() + (writer.head * length + node.position) * length;
    const auto most = std::max_element(begin, begin + node.position + 1);
    const int source = most - begin;
    const std::string& text = trace_.tokens[source].text;
    const long share = std::lround(100 * *most);
    std::string out = place(node);
    if (*most >= kFocused) {
      out += fmt::format(" looks {}% at {}", share, token(source));
      if (holds(written.promoted, text)) {
        out += " and copies it (V)";
      } else if (holds(written.lowered, text)) {
        out += " and writes against it (V)";
      } else {
        out += " and " + (speaks(node) ? effect(node) : std::string("passes it on")) + " (V)";
      }
    } else {
      out += fmt::format(" spreads its attention, most of it ({}%) to {}", share, token(source));
      if (speaks(node)) out += ", and " + effect(node);
    }
    out += credit_of(node);
    const std::optional<Feed> key = strongest(rooted, Branch::K, source);
    const std::optional<Feed> query = strongest(rooted, Branch::Q, std::nullopt);
    if (key) {
      out += fmt::format(" It looks there because {} feeds its keys (K)", feeder(*key));
      if (query) out += fmt::format(" and {} its query (Q)", feeder(*query));
      out += ".";
    } else if (query) {
      out += fmt::format(" {} feeds its query (Q).", feeder(*query));
    }
    const std::optional<Feed> value = strongest(rooted, Branch::V, source);
    if (value && !writers_[value->node.writer].terminal())
      out += fmt::format(" What it takes from there was written by {} (V).", feeder(*value));
    return out;
  }

  std::string mlp(const Node& node, const TraceResult& rooted) const {
    // Of a root nothing is known of those who read it.
    const bool root = trace_.root == node;
    std::string out =
        root ? place(node)
             : fmt::format("{} {}{}", place(node),
                           speaks(node) ? effect(node) : "prepares what later readers use",
                           credit_of(node));
    std::vector<std::string> read;
    for (const auto& [branch, rows] : rooted.incoming) {
      const std::optional<Feed> feed = strongest(rooted, branch, std::nullopt);
      if (!feed) continue;
      const std::string label = hop_label(branch);
      read.push_back(feeder(*feed) + (label.empty() ? "" : " (" + label + ")"));
    }
    if (!read.empty())
      out +=
          fmt::format("{} most from {}.", root ? " reads" : " It reads", fmt::join(read, " and "));
    return out;
  }

  const Prepared& prepared_;
  const Writers& writers_;
  const Question& question_;
  const TraceResult& trace_;
  const RunContext& context_;
};

}  // namespace

std::vector<Sentence> explain(const Prepared& prepared, const Question& question,
                              const TraceResult& trace, int count, const RunContext& context) {
  const Writers& writers = prepared.model().writers();
  std::vector<Sentence> out;
  for (int w = writers.terminals(); w < writers.count(); ++w) {
    const std::vector<double>& row = trace.node_credit.at(w);
    for (std::size_t s = 0; s < row.size(); ++s) {
      if (row[s] != 0) out.push_back({{w, static_cast<int>(s)}, row[s], ""});
    }
  }
  std::stable_sort(out.begin(), out.end(), [&](const Sentence& a, const Sentence& b) {
    const bool first = trace.root == a.node, second = trace.root == b.node;
    return first != second ? first : std::abs(a.credit) > std::abs(b.credit);
  });
  out.resize(std::min(out.size(), static_cast<std::size_t>(std::max(0, count))));
  const Explainer explainer(prepared, question, trace, context);
  for (Sentence& sentence : out) sentence.text = explainer.about(sentence.node);
  return out;
}

Sentence explain_node(const Prepared& prepared, const Question& question, const TraceResult& trace,
                      const Node& node, const RunContext& context) {
  const Explainer explainer(prepared, question, trace, context);
  return {node, trace.node_credit.at(node.writer).at(node.position), explainer.about(node)};
}

OrderedJson report::sentences_json(const std::vector<Sentence>& sentences, const Writers& writers) {
  OrderedJson list = OrderedJson::array();
  for (const Sentence& sentence : sentences) {
    list.push_back({{"node", to_string(writers, sentence.node)},
                    {"credit", sentence.credit},
                    {"text", sentence.text}});
  }
  return list;
}

std::string to_json(const std::vector<Sentence>& sentences, const Writers& writers) {
  return report::compact({{"sentences", report::sentences_json(sentences, writers)}});
}

}  // namespace unpack
