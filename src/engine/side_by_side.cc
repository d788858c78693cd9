// Prompts that do not fill a device by themselves, several at a time.
#include <algorithm>
#include <atomic>

#include "backend/device_memory.h"
#include "base/index.h"
#include "base/thread_pool.h"
#include "engine/plan.h"
#include "engine/state.h"

namespace unpack::engine {

namespace {

// More wait for each other over the driver.
constexpr int kMostLanes = 12;
// A longer prompt fills the device.
constexpr int kShort = 128;

int lanes_for(const ModelState& state, std::size_t count, int longest, const RunContext& context) {
  backend::DeviceMemory* memory = state.backend->device_memory();
  if (memory == nullptr || count < 2 || longest > kShort) return 0;
  const double need = device_memory_cost(state.backend->config(), state.writers, longest,
                                         context.memory_budget, memory->in_parts());
  const double room = static_cast<double>(memory->room_for_prompts()) / 2;
  return std::min({kMostLanes, static_cast<int>(count), base::available_threads(),
                   static_cast<int>(std::min(room / std::max(need, 1.0), 1e6))});
}

}  // namespace

bool side_by_side(const Model& model, std::size_t count, int longest, const RunContext& context,
                  const std::function<void(const Model&, std::size_t)>& work) {
  const ModelState& state = *state_of(model);
  const int wanted = lanes_for(state, count, longest, context);
  std::vector<Model> models;
  if (wanted > 1) {
    for (const std::shared_ptr<backend::Backend>& lane : state.backend->lanes(wanted)) {
      auto own = std::make_shared<ModelState>(state);
      own->backend = lane;
      models.push_back(Inside::model(std::move(own)));
    }
  }
  if (models.empty()) return false;
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  base::ThreadPool threads(models.size());
  threads.parallel_for(std::ssize(models), [&](Index lane) {
    try {
      for (std::size_t i = next++; i < count && !failed; i = next++) work(models[lane], i);
    } catch (...) {
      failed = true;
      throw;
    }
  });
  return true;
}

}  // namespace unpack::engine
