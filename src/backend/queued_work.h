// A face of backends that return before their device is done (dynamic_cast): whoever times them has
// to wait.
#pragma once

namespace unpack::backend {

class QueuedWork {
 public:
  virtual ~QueuedWork() = default;
  virtual void synchronize() = 0;
};

}  // namespace unpack::backend
