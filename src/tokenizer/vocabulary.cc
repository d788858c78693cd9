#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

std::uint32_t hash_of(std::string_view token) {
  const std::uint64_t hash = std::hash<std::string_view>()(token);
  return hash ^ hash >> 32;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::pair<std::string, std::int64_t>> entries,
                       const std::string& origin) {
  const std::string field = origin + ": the vocabulary";
  if (entries.empty()) throw InputError(field + " is missing or empty");
  reserve(entries.size());
  for (auto& entry : entries) add(std::move(entry.first), entry.second, field);
}

void Vocabulary::add(std::string token, std::int64_t id, const std::string& field) {
  if (id < 0 || id > kMaxTokenId) {
    throw InputError(field + ": " + in_quotes(token) + " has the id " + std::to_string(id) +
                     ", outside 0 to " + std::to_string(kMaxTokenId));
  }
  const std::size_t index = id;
  if (index < by_id_.size() && by_id_[index] != nullptr) {
    throw InputError(field + ": " + in_quotes(*by_id_[index]) + " and " + in_quotes(token) +
                     " have the same id " + std::to_string(id));
  }
  if (2 * (tokens_.size() + 1) > slots_.size()) reserve(2 * (tokens_.size() + 1));
  const std::uint32_t hash = hash_of(token);
  Slot& slot = slots_[slot_of(token, hash)];
  if (slot.id != kFree) throw InputError(field + ": " + in_quotes(token) + " stands there twice");
  slot = {hash, static_cast<TokenId>(id)};
  if (index >= by_id_.size()) by_id_.resize(index + 1, nullptr);
  by_id_[index] = &tokens_.emplace_back(std::move(token));
}

std::size_t Vocabulary::slot_of(std::string_view token, std::uint32_t hash) const {
  std::size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id != kFree && (slots_[at].hash != hash || *by_id_[slots_[at].id] != token))
    at = (at + 1) & (slots_.size() - 1);
  return at;
}

void Vocabulary::reserve(std::size_t count) {
  std::vector<Slot> old(std::bit_ceil(std::max<std::size_t>(2 * count, 16)));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id != kFree) slots_[slot_of(*by_id_[slot.id], slot.hash)] = slot;
  }
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const Slot& slot = slots_[slot_of(token, hash_of(token))];
  if (slot.id == kFree) return std::nullopt;
  return slot.id;
}

const std::string* Vocabulary::spelling(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < by_id_.size() ? by_id_[id] : nullptr;
}

}  // namespace unpack::tokenizer
