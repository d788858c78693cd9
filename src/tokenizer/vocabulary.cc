#include "tokenizer/vocabulary.h"

#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tok {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, std::int64_t>> entries, const std::string& origin) {
  const std::string field = origin + ": the vocabulary";
  if (entries.empty()) throw InputError(field + " is missing or empty");
  ids_.reserve(entries.size());
  for (auto& [token, id] : entries) add(std::move(token), id, field);
}

void Vocabulary::add(std::string token, std::int64_t id, const std::string& field) {
  if (id < 0 || id > kMaxTokenId) {
    throw InputError(field + ": " + in_quotes(token) + " has the id " + std::to_string(id) + ", outside 0 to " + std::to_string(kMaxTokenId));
  }
  const auto index = static_cast<std::size_t>(id);
  if (index < by_id_.size() && by_id_[index] != nullptr) {
    throw InputError(field + ": " + in_quotes(*by_id_[index]) + " and " + in_quotes(token) + " have the same id " + std::to_string(id));
  }
  tokens_.push_back(std::move(token));
  if (!ids_.emplace(tokens_.back(), static_cast<TokenId>(id)).second) throw InputError(field + ": " + in_quotes(tokens_.back()) + " stands there twice");
  if (index >= by_id_.size()) by_id_.resize(index + 1, nullptr);
  by_id_[index] = &tokens_.back();
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::spelling(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < by_id_.size() ? by_id_[static_cast<std::size_t>(id)] : nullptr;
}

}  // namespace unpack::tok
