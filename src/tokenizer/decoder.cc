#include "tokenizer/decoder.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/step_list.h"
#include "tokenizer/utf8.h"

namespace unpack::tokenizer {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// <0xE6> stands for the byte E6.
std::string fallback_byte(std::string spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return spelling;
  const int high = hex_digit(spelling[3]);
  const int low = hex_digit(spelling[4]);
  if (high < 0 || low < 0) return spelling;
  return {static_cast<char>(high << 4 | low)};
}

std::string stripped(std::string_view text, std::string_view content, std::size_t start,
                     std::size_t stop) {
  for (; start > 0 && text.starts_with(content); --start) text.remove_prefix(content.size());
  for (; stop > 0 && text.ends_with(content); --stop) text.remove_suffix(content.size());
  return std::string(text);
}

std::size_t read_count(const Fields& step, const char* key) {
  const std::int64_t count = step.integer(key);
  if (count < 0) step.fail(key, "must not be negative");
  return count;
}

}  // namespace

Decoder::Decoder(const Fields& file, bool byte_level, bool metaspace) {
  if (!file.missing("decoder")) {
    for (const Fields& step : flat_steps(file, "decoder", "decoders")) read_step(step);
  } else if (byte_level) {
    per_token_.emplace_back(ByteLevel{});
  } else if (metaspace) {
    add_metaspace("\xE2\x96\x81", true, file.origin() + ": decoder");
  }
}

Decoder Decoder::byte_level() {
  Decoder made;
  made.per_token_.emplace_back(ByteLevel{});
  return made;
}

void Decoder::read_step(const Fields& step) {
  std::vector<Step>& steps = fused_ ? whole_ : per_token_;
  const std::string type = step.string("type");
  if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    steps.emplace_back(Replace{read_pattern(step, "pattern"), step.string("content")});
  } else if (type == "Strip") {
    steps.emplace_back(
        Strip{read_char(step, "content"), read_count(step, "start"), read_count(step, "stop")});
  } else if (fused_) {
    step.fail("type",
              in_quotes(type) + " follows Fuse; only Replace and Strip are supported there");
  } else if (type == "ByteLevel") {
    steps.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(ByteFallback{});
  } else if (type == "Metaspace") {
    const std::string scheme =
        step.optional_string("prepend_scheme")
            .value_or(step.boolean("add_prefix_space", true) ? "always" : "never");
    add_metaspace(read_char(step, "replacement"), scheme != "never",
                  step.origin() + ": " + step.name("replacement"));
  } else {
    step.fail("type", in_quotes(type) +
                          " is not supported; a decoder may be ByteLevel, ByteFallback, Fuse, "
                          "Metaspace, Replace, Strip or a Sequence of these");
  }
}

void Decoder::add_metaspace(const std::string& replacement, bool strip_first,
                            const std::string& field) {
  per_token_.emplace_back(Replace{Regex(replacement, Regex::Kind::literal, field), " "});
  if (strip_first) whole_.emplace_back(Strip{" ", 1, 0});
}

std::string Decoder::run(const Step& step, std::string bytes, std::size_t limit) {
  if (std::holds_alternative<ByteFallback>(step)) return fallback_byte(std::move(bytes));
  // The other steps are about characters: bytes that are only part of one pass unchanged.
  if (first_invalid_utf8(bytes) != std::string::npos) return bytes;
  if (std::holds_alternative<ByteLevel>(step)) {
    auto spelled = spelled_bytes(bytes);
    return spelled ? std::move(*spelled) : bytes;
  }
  if (const auto* replace = std::get_if<Replace>(&step))
    return replace->pattern.replace(bytes, replace->content, limit);
  const auto& strip = std::get<Strip>(step);
  return stripped(bytes, strip.content, strip.start, strip.stop);
}

std::string Decoder::token_bytes(std::string_view spelling) const {
  std::string bytes(spelling);
  for (const Step& step : per_token_)
    bytes = run(step, std::move(bytes), growth_limit(spelling.size()));
  return bytes;
}

std::string Decoder::finish(std::string bytes) const {
  bytes = repair_utf8(bytes);
  const std::size_t limit = growth_limit(bytes.size());
  for (const Step& step : whole_) bytes = run(step, std::move(bytes), limit);
  return bytes;
}

}  // namespace unpack::tokenizer
