#include "model/value_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/message.h"
#include "base/scratch.h"
#include "base/system.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

constexpr std::size_t kLook = std::size_t{1} << 20;  // bytes that are looked at in one go
constexpr std::int64_t kSharedChunks = 8;  // of a tensor that several threads look through
constexpr int kLookers = 8;

std::int64_t chunks_of(const StoredTensor& tensor) { return (tensor.bytes + kLook - 1) / kLook; }

}  // namespace

bool is_large_half(const StoredTensor& tensor) {
  return tensor::dtype_size(tensor.dtype) == 2 && tensor.bytes >= kLook;
}

void check_values(const StoredTensor& stored, const std::string& origin, const FetchBytes& fetch,
                  std::optional<base::ThreadPool>& pool) {
  const std::int64_t chunks = chunks_of(stored);
  const std::size_t size = tensor::dtype_size(stored.dtype);
  // Element of the chunk, or -1; and its value.
  const auto look = [&](std::int64_t chunk, std::byte* buffer) {
    const std::size_t at = chunk * kLook;
    const std::size_t n = std::min(kLook, stored.bytes - at);
    const std::byte* data = fetch(at, n, buffer);
    const std::int64_t bad = tensor::find_non_finite(data, stored.dtype, n / size);
    return std::pair(bad, bad < 0 ? 0.0 : tensor::load_element(data, stored.dtype, bad));
  };
  base::Scratch own;
  auto* buffer = own.of<std::byte>(kLook);
  if (chunks >= kSharedChunks) {
    if (!pool) pool.emplace(std::min(kLookers, base::available_threads()));
    std::atomic<bool> found = false;
    pool->parallel_for(chunks, [&](std::int64_t chunk) {
      base::Scratch one;
      if (look(chunk, one.of<std::byte>(kLook)).first >= 0) found = true;
    });
    if (!found) return;
  }
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto [bad, value] = look(chunk, buffer);
    if (bad < 0) continue;
    throw InputError(fmt::format(
        "{}: tensor {} holds values that are no finite float32 number (element {} is {}); the file "
        "is damaged or its training diverged, use another checkpoint",
        origin, base::shown(stored.name), chunk * (kLook / size) + bad, value));
  }
}

void ValueChecks::add(StoredTensor tensor, std::string origin) {
  const std::size_t bytes = tensor.bytes;
  tensors_.push_back({std::move(tensor), std::move(origin), bytes});
}

ValueChecks::Tensor* ValueChecks::find(const std::byte* matrix) {
  for (Tensor& tensor : tensors_) {
    if (matrix >= tensor.stored.data && matrix < tensor.stored.data + tensor.stored.bytes)
      return &tensor;
  }
  return nullptr;
}

bool ValueChecks::wanted(const std::byte* matrix) const {
  const std::lock_guard lock(mutex_);
  return !tensors_.empty() && !seen_.contains(matrix) &&
         const_cast<ValueChecks*>(this)->find(matrix) != nullptr;
}

void ValueChecks::seen(const std::byte* matrix, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Tensor* tensor = find(matrix);
  if (tensor == nullptr || !seen_.insert(matrix).second) return;
  tensor->left -= std::min(tensor->left, bytes);
  if (tensor->left == 0) tensors_.erase(tensors_.begin() + (tensor - tensors_.data()));
}

void ValueChecks::finish() {
  const std::lock_guard lock(mutex_);
  std::optional<base::ThreadPool> pool;
  while (!tensors_.empty()) {
    const StoredTensor& stored = tensors_.front().stored;
    const auto in_place = [&](std::size_t at, std::size_t n, std::byte*) {
      base::will_read(stored.data + at, n);
      return stored.data + at;
    };
    check_values(stored, tensors_.front().origin, in_place, pool);
    tensors_.erase(tensors_.begin());
  }
}

}  // namespace unpack::model
