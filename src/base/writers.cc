#include "unpack/writers.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>

#include "unpack/error.h"

namespace unpack {
namespace {

// Reads a spelling such as "attn_8_head_6" piece by piece, letters in either case.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool literal(std::string_view word) {
    if (text_.size() < word.size()) return false;
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (std::tolower(static_cast<unsigned char>(text_[i])) !=
          std::tolower(static_cast<unsigned char>(word[i])))
        return false;
    }
    text_.remove_prefix(word.size());
    return true;
  }

  bool number(int& value) {
    if (text_.empty() || !std::isdigit(static_cast<unsigned char>(text_.front()))) return false;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc{}) return false;
    text_.remove_prefix(end - text_.data());
    return true;
  }

  bool done() const { return text_.empty(); }

 private:
  std::string_view text_;
};

struct HeadForm {
  const char *before, *between;
};
constexpr HeadForm kHeadForms[] = {
    {"A", ".H"}, {"attn_", "_head_"}, {"L", "H"}, {"L", ".H"}, {"", "."}};
constexpr const char* kMlpForms[] = {"MLP", "mlp_"};

std::optional<Writer> parse_spelling(std::string_view text) {
  Scanner whole(text);
  if (whole.literal("emb") && whole.done()) return Writer{WriterKind::emb, -1, -1};
  whole = Scanner(text);
  if (whole.literal("pos") && whole.done()) return Writer{WriterKind::pos, -1, -1};
  int layer = 0, head = 0;
  for (const HeadForm& form : kHeadForms) {
    Scanner scan(text);
    if (scan.literal(form.before) && scan.number(layer) && scan.literal(form.between) &&
        scan.number(head) && scan.done()) {
      return Writer{WriterKind::head, layer, head};
    }
  }
  for (const char* form : kMlpForms) {
    Scanner scan(text);
    if (scan.literal(form) && scan.number(layer) && scan.done())
      return Writer{WriterKind::mlp, layer, -1};
  }
  return std::nullopt;
}

}  // namespace

Writers::Writers(const ModelConfig& config)
    : base_(config.has_pos_writer() ? 2 : 1),
      heads_(config.n_heads),
      layers_(config.n_layers),
      parallel_(config.block == Block::parallel) {
  list_.reserve(first_of_layer(layers_));
  list_.push_back({WriterKind::emb, -1, -1});
  if (config.has_pos_writer()) list_.push_back({WriterKind::pos, -1, -1});
  for (int l = 0; l < layers_; ++l) {
    for (int h = 0; h < heads_; ++h) list_.push_back({WriterKind::head, l, h});
    list_.push_back({WriterKind::mlp, l, -1});
  }
}

std::string Writers::name(int index) const {
  const Writer& w = (*this)[index];
  switch (w.kind) {
    case WriterKind::emb:
      return "emb";
    case WriterKind::pos:
      return "pos";
    case WriterKind::head:
      return fmt::format("A{}.H{}", w.layer, w.head);
    case WriterKind::mlp:
      return fmt::format("MLP{}", w.layer);
  }
  throw InternalError("writer of unknown kind");
}

int Writers::parse(std::string_view text) const {
  const std::optional<Writer> writer = parse_spelling(text);
  if (!writer)
    throw InputError(
        fmt::format("'{}' names no component: write A8.H6 (a head), MLP3, emb or pos", text));
  switch (writer->kind) {
    case WriterKind::emb:
      return 0;
    case WriterKind::pos:
      if (base_ == 2) return 1;
      throw InputError(
          "this model has no 'pos' component (its positions are rotary): write emb, a head such as "
          "A0.H0, or an MLP such as MLP0");
    case WriterKind::head:
    case WriterKind::mlp:
      if (writer->layer >= layers_ || writer->head >= heads_) {
        throw InputError(
            fmt::format("there is no '{}' in this model: its heads are A0.H0 to A{}.H{}, its MLPs "
                        "MLP0 to MLP{}",
                        text, layers_ - 1, heads_ - 1, layers_ - 1));
      }
      return writer->kind == WriterKind::mlp ? mlp(writer->layer)
                                             : head(writer->layer, writer->head);
  }
  throw InternalError("writer of unknown kind");
}

Node parse_node(const Writers& writers, std::string_view text, int length) {
  const std::size_t at = text.rfind('@');
  if (at == std::string_view::npos)
    throw InputError(fmt::format("node '{}' has no position: write it like {}@-1", text,
                                 text.empty() ? "A0.H0" : text));
  const std::string_view where = text.substr(at + 1);
  int position = 0;
  const auto [end, error] = std::from_chars(where.data(), where.data() + where.size(), position);
  if (where.empty() || error != std::errc{} || end != where.data() + where.size()) {
    throw InputError(
        fmt::format("'{}' is no position in node '{}': write a whole number after the @, negative "
                    "counts from the end",
                    where, text));
  }
  return {writers.parse(text.substr(0, at)), resolve_position(position, length)};
}

std::string to_string(const Writers& writers, const Node& node) {
  return fmt::format("{}@{}", writers.name(node.writer), node.position);
}

int resolve_position(int position, int length) {
  if (position >= -length && position < length) return position < 0 ? position + length : position;
  throw InputError(fmt::format(
      "position {} is outside the prompt of {} token{}: give {} to {}, or {} to -1 from the end",
      position, length, length == 1 ? "" : "s", 0, length - 1, -length));
}

}  // namespace unpack
