// All tensors of a checkpoint by name, wherever they are kept.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"

namespace unpack::model {

class Checkpoint {
 public:
  struct Entry {
    FileTensor tensor;
    const MappedFile* file = nullptr;  // nullptr: in memory
    std::string origin;                // what messages call the place
    // Where it is, elements are read through it, in the order of `shape`; the bytes of `tensor` are
    // only what it is made from.
    std::shared_ptr<const Encoded> encoded = nullptr;
    bool transposed = false;  // the last two axes are exchanged in `encoded`
  };

  // One file, or shards with an index. Throws InputError that says what is missing, or how to
  // convert other formats.
  // `mapped` false: the files are read into memory.
  static Checkpoint open(const std::filesystem::path& folder, bool mapped = true);
  static Checkpoint from_memory(const std::map<std::string, StoredTensor>& tensors,
                                std::shared_ptr<const void> owner);

  static Checkpoint empty(std::string origin, std::shared_ptr<const void> storage);
  void put(const std::string& name, Entry entry) { entries_[name] = std::move(entry); }

  const Entry* find(std::string_view name) const;
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& item : entries_) visit(item.second);
  }
  const std::string& origin() const { return origin_; }
  std::shared_ptr<const void> storage() const { return storage_; }
  bool mapped() const { return mapped_; }

  // Bytes [offset, offset + n) of a tensor: a file is read, memory is used in place. `buffer` holds
  // n bytes.
  static const std::byte* fetch(const Entry& entry, std::size_t offset, std::size_t n,
                                std::byte* buffer);

 private:
  std::map<std::string, Entry, std::less<>> entries_;
  std::string origin_;
  std::shared_ptr<const void> storage_;
  bool mapped_ = false;
};

// The *.safetensors files (or the index) that a folder's weights are in; throws as open() does.
std::filesystem::path find_weights(const std::filesystem::path& folder);
// Text of a small file such as config.json. Throws InputError.
std::string read_text_file(const std::filesystem::path& path);
// One line that says why a folder without config.json is no model, and what to do.
std::string explain_no_config(const std::filesystem::path& folder);

}  // namespace unpack::model
