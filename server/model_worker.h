// One model and its queue: loaded at first use, questions answered one after the other on a thread
// of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "unpack/model.h"

namespace unpack::server {

using Work = std::function<std::string(const Model& model, const RunContext& context)>;

// A question on its way: whoever asked waits for it, or gives it up.
class Job {
 public:
  Job(Work work, std::size_t memory_budget)
      : work_(std::move(work)), memory_budget_(memory_budget) {}

  bool wait_for(std::chrono::milliseconds time);
  std::string
  take();  // the answer, or the exception that came instead; only once wait_for said true
  void cancel() { stop_.request_stop(); }

 private:
  friend class ModelWorker;
  void run(const Model& model);
  void fail(std::exception_ptr error);
  void finish();

  Work work_;
  std::size_t memory_budget_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::string answer_;
  std::exception_ptr error_;
};

class ModelWorker {
 public:
  ModelWorker(std::string name, LoadOptions load, std::size_t max_waiting,
              std::size_t memory_budget);
  ~ModelWorker();
  ModelWorker(const ModelWorker&) = delete;
  ModelWorker& operator=(const ModelWorker&) = delete;

  const std::string& name() const { return name_; }
  std::shared_ptr<const Model> loaded() const;  // nothing before the first use
  // Nothing when too many wait already.
  std::shared_ptr<Job> submit(Work work);
  void cancel_all();
  std::size_t waiting() const;  // with the one that is being answered

 private:
  void loop(const std::stop_token& stop);
  std::shared_ptr<const Model> load();

  const std::string name_;
  const LoadOptions load_;
  const std::size_t max_waiting_;
  const std::size_t memory_budget_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> running_;
  std::shared_ptr<const Model> model_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace unpack::server
