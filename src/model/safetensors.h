// The safetensors container: 8 bytes header size, a JSON header, then the bytes of all tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "model/weights.h"

namespace unpack::model {

// A tensor of a file. Types that the maths does not take keep their name, so that a file may hold
// buffers of any type.
struct FileTensor {
  StoredTensor stored;     // dtype is meaningful where `readable`
  std::string dtype_name;  // "F32", "I8", ...
  bool readable = false;   // F64, F32, F16 or BF16
};

// Throws InputError for a header that is too long, no JSON or ill-formed, for a key that occurs
// twice, for offsets that overlap, leave the file or do not fit shape and type, and for bytes that
// belong to no tensor, between them or behind the last: the rules of the format's own library. The
// header begins with `{` and is padded by spaces only. Offsets without alignment are accepted.
std::vector<FileTensor> parse_safetensors(std::span<const std::byte> file,
                                          const std::string& origin);

// A file mapped read-only, or read into memory of our own. Big scans go through read(), which
// leaves no page of the mapping resident. A mapped file that is cut short faults when it is read
// (SIGBUS); what it held when it was opened is all that is ever read.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path, bool mapped = true);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Copies bytes that begin at `from`, a place inside bytes(), to `to`.
  void read(const std::byte* from, std::size_t n, std::byte* to) const;

 private:
  std::filesystem::path path_;
  base::InputFile file_;
  bool mapped_;
  std::unique_ptr<std::byte[]> own_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Drops the whole pages of a mapped file that lie inside the range; they come back from the file
// when touched again.
void release_pages(const std::byte* data, std::size_t bytes);

}  // namespace unpack::model
