#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/step_list.h"
#include "tokenizer/utf8.h"

namespace unpack::tokenizer {
namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A match, or what stands between two of them.
struct Part {
  std::size_t start;
  std::size_t end;
  bool match;
};

// The delimiter joins the part before it, but of several delimiters in a row only the first does.
void merge_with_previous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !merged.empty()) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
    after_match = part.match;
  }
  parts = std::move(merged);
}

void merge_with_next(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool before_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !before_match && !merged.empty()) {
      merged.back().start = part->start;
    } else {
      merged.push_back(*part);
    }
    before_match = part->match;
  }
  parts.assign(merged.rbegin(), merged.rend());
}

void merge_contiguous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().match == part.match) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
  }
  parts = std::move(merged);
}

}  // namespace

PreTokenizer::PreTokenizer(const Fields& file) {
  for (const Fields& step : flat_steps(file, "pre_tokenizer", "pretokenizers")) {
    if (byte_level_)
      step.fail("type", "follows a ByteLevel step; only ByteLevel as the last step is supported");
    const std::string type = step.string("type");
    const std::string field = step.origin() + ": " + step.name("type");
    if (type == "ByteLevel") {
      add_byte_level(step.boolean("add_prefix_space", true), step.boolean("use_regex", true),
                     field);
    } else if (type == "Split") {
      steps_.emplace_back(read_split(step));
    } else if (type == "Metaspace") {
      steps_.emplace_back(read_metaspace(step));
      metaspace_ = true;
    } else if (type == "Digits") {
      const Behavior behavior =
          step.boolean("individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
      steps_.emplace_back(Split{Regex(R"(\p{N})", Regex::Kind::pattern, field), behavior, false});
    } else if (type == "Punctuation") {
      steps_.emplace_back(Split{Regex(R"([\p{P}!-/:-@\[-`{-~])", Regex::Kind::pattern, field),
                                read_behavior(step), false});
    } else {
      step.fail("type", in_quotes(type) +
                            " is not supported; a pre-tokenizer may be ByteLevel, Split, "
                            "Metaspace, Digits, Punctuation or a Sequence of these");
    }
  }
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer made;
  made.add_byte_level(false, true, "the GPT-2 split pattern");
  return made;
}

void PreTokenizer::add_byte_level(bool prefix_space, bool use_regex, const std::string& field) {
  if (prefix_space) steps_.emplace_back(PrefixSpace{});
  if (use_regex)
    steps_.emplace_back(
        Split{Regex(kGpt2Pattern, Regex::Kind::pattern, field), Behavior::isolated, false});
  byte_level_ = true;
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const Fields& step) {
  const std::string name = step.optional_string("behavior").value_or("Isolated");
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  step.fail("behavior",
            in_quotes(name) +
                " is not one of Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

PreTokenizer::Split PreTokenizer::read_split(const Fields& step) {
  return {read_pattern(step, "pattern"), read_behavior(step), step.boolean("invert", false)};
}

PreTokenizer::Metaspace PreTokenizer::read_metaspace(const Fields& step) {
  // Older files say add_prefix_space where newer ones have a prepend_scheme.
  const std::string scheme =
      step.optional_string("prepend_scheme")
          .value_or(step.boolean("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    step.fail("prepend_scheme", in_quotes(scheme) + " is not one of always, first, never");
  const PrependScheme prepend = scheme == "always"  ? PrependScheme::always
                                : scheme == "first" ? PrependScheme::first
                                                    : PrependScheme::never;
  return {read_char(step, "replacement"), prepend, step.boolean("split", true)};
}

std::vector<Piece> PreTokenizer::apply(std::string_view text, bool opens_text,
                                       std::deque<std::string>& storage) const {
  std::vector<Piece> pieces;
  if (!text.empty()) pieces.push_back({text, opens_text});
  std::vector<Piece> next;
  for (const auto& step : steps_) {
    next.clear();
    if (const auto* split = std::get_if<Split>(&step)) {
      Regex::Scan scan(split->pattern);
      for (const Piece& piece : pieces) split_piece(*split, scan, piece, next);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      for (const Piece& piece : pieces) metaspace_piece(*metaspace, piece, storage, next);
    } else {
      for (const Piece& piece : pieces) {
        if (piece.text.starts_with(' ')) {
          next.push_back(piece);
        } else {
          next.push_back({storage.emplace_back(" ").append(piece.text), piece.opens_text});
        }
      }
    }
    pieces.swap(next);
  }
  return pieces;
}

void PreTokenizer::split_piece(const Split& split, Regex::Scan& scan, const Piece& piece,
                               std::vector<Piece>& out) {
  std::vector<Part> parts;
  const bool direct =
      split.behavior ==
      Behavior::isolated;  // nothing to merge or drop: the usual case, and worth a shortcut
  const auto emit = [&](std::size_t start, std::size_t end, bool match) {
    if (direct) {
      if (start < end)
        out.push_back({piece.text.substr(start, end - start), piece.opens_text && start == 0});
    } else {
      parts.push_back({start, end, match != split.invert});
    }
  };
  std::size_t done = 0;
  scan.start(piece.text);
  while (scan.next()) {
    if (done < scan.match_start()) emit(done, scan.match_start(), false);
    emit(scan.match_start(), scan.match_end(), true);
    done = scan.match_end();
  }
  if (done < piece.text.size()) emit(done, piece.text.size(), false);
  if (direct) return;
  if (split.behavior == Behavior::merged_with_previous) merge_with_previous(parts);
  if (split.behavior == Behavior::merged_with_next) merge_with_next(parts);
  if (split.behavior == Behavior::contiguous) merge_contiguous(parts);
  for (const Part& part : parts) {
    if (part.start == part.end || (part.match && split.behavior == Behavior::removed)) continue;
    out.push_back({piece.text.substr(part.start, part.end - part.start),
                   piece.opens_text && part.start == 0});
  }
}

void PreTokenizer::metaspace_piece(const Metaspace& step, const Piece& piece,
                                   std::deque<std::string>& storage, std::vector<Piece>& out) {
  std::string text;
  text.reserve(piece.text.size() + piece.text.size() / 4 + step.replacement.size());
  const bool prepend = step.prepend == PrependScheme::always ||
                       (step.prepend == PrependScheme::first && piece.opens_text);
  if (prepend && !piece.text.starts_with(' ') && !piece.text.starts_with(step.replacement))
    text += step.replacement;
  for (const char c : piece.text) c == ' ' ? text += step.replacement : text += c;
  const std::string_view whole = storage.emplace_back(std::move(text));
  if (!step.split) return out.push_back({whole, piece.opens_text});
  for (std::size_t start = 0; start < whole.size();) {
    std::size_t end = whole.find(step.replacement, start + utf8_length(whole[start]));
    if (end == std::string_view::npos) end = whole.size();
    out.push_back({whole.substr(start, end - start), piece.opens_text && start == 0});
    start = end;
  }
}

}  // namespace unpack::tokenizer
