// Arrays on a device, and blocks of their rows.
#pragma once

#include <memory>
#include <utility>

#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend {

// An array of the backend's scalar on the backend's device.
class Array {
 public:
  Array() = default;
  Array(std::shared_ptr<void> data, Index size) : data_(std::move(data)), size_(size) {}
  Index size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void* raw() const { return data_.get(); }

 private:
  std::shared_ptr<void> data_;
  Index size_ = 0;
};

// An element of an array, to those who do not know the device's scalar.
struct Any;

// Rows [rows, cols] of an array, one after the other. Where one is made out of an array, and where
// a primitive takes it, its shape is checked in debug builds.
struct View {
  Any* data = nullptr;
  Index rows = 0, cols = 0;
};

// What lies in an array from one of its elements on: so many numbers.
struct Tail {
  Any* data = nullptr;
  Index size = 0;
};

#ifdef NDEBUG
inline constexpr bool kShapesChecked = false;
#else
inline constexpr bool kShapesChecked = true;
#endif

// `what` names what does not fit.
inline void check_shape(bool fits, const char* what) {
  if (kShapesChecked && !fits) throw InternalError(std::string("shapes do not fit: ") + what);
}

}  // namespace unpack::backend
