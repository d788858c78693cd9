// What backends have whose device has memory of its own (Backend::device_memory): how much of it is
// used, and models that do not fit it.
#pragma once

#include <cstdint>

namespace unpack::backend {

class DeviceMemory {
 public:
  struct Use {
    std::uint64_t peak = 0;  // bytes: the most in use since the count was started again
    std::uint64_t held = 0;  // the most that was taken from the device
  };
  virtual ~DeviceMemory() = default;
  virtual Use memory_use(bool start_again = false) = 0;
  // What is left for prompts once all weights that stay on the device are there.
  virtual std::uint64_t room_for_prompts() = 0;
  // The weights of so many layers stay on the device, at least two; the others go up as they are
  // needed. All are forgotten first.
  virtual void keep_layers(int count) = 0;
  // Whether some layers go up as they are needed.
  virtual bool streams() const = 0;
  // Whether products are made in parts where that is faster, which takes more memory.
  virtual bool in_parts() const = 0;
  // Weights of layers that went up so far.
  virtual std::uint64_t uploaded_bytes() = 0;
  // Every layer goes up once, one after the other, and is forgotten; how much that was.
  virtual std::uint64_t upload_once() = 0;
};

}  // namespace unpack::backend
