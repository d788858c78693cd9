// Whether stored values are finite numbers. Those of large tensors in half precision are looked at
// when they are first used: a product with a value that is none is none either, so that a finite
// product has looked at all of them for nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/weights.h"

namespace unpack::model {

// Bytes [at, at + n) of a tensor; `buffer` has room for them.
using FetchBytes =
    std::function<const std::byte*(std::size_t at, std::size_t n, std::byte* buffer)>;

// Throws InputError that names origin, tensor and element where one is no finite number in single
// precision. Large tensors are looked through by the pool, made where there is none.
void check_values(const StoredTensor& tensor, const std::string& origin, const FetchBytes& fetch,
                  std::optional<base::ThreadPool>& pool);

// Whether a tensor is large enough to be looked at where it lies.
bool is_large_half(const StoredTensor& tensor);

// Tensors that nobody has looked at. May be asked from several threads at once.
class ValueChecks {
 public:
  void add(StoredTensor tensor, std::string origin);

  // A matrix is named by its first stored byte, and has so many bytes. Whether a look at it is
  // still wanted;
  bool wanted(const std::byte* matrix) const;
  // a product with all of it was finite;
  void seen(const std::byte* matrix, std::size_t bytes);
  // looks at what is left, and throws as check_values does.
  void finish();

 private:
  struct Tensor {
    StoredTensor stored;
    std::string origin;
    std::size_t left;  // bytes
  };
  Tensor* find(const std::byte* matrix);

  mutable std::mutex mutex_;
  std::vector<Tensor> tensors_;
  std::set<const std::byte*> seen_;
};

}  // namespace unpack::model
