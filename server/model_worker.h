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

// How far a question has come.
struct Place {
  std::size_t before = 0;  // questions that come first; 0: it is being answered
  bool running = false;
  std::string what;  // the stage, "layers", and how far it is: 0 of 0 where that is not known
  double done = 0, total = 0;
};

// A question on its way: whoever asked waits for it, or gives it up.
class Job {
 public:
  Job(Work work, std::size_t memory_budget, std::string ticket = {})
      : work_(std::move(work)), memory_budget_(memory_budget), ticket_(std::move(ticket)) {}

  bool wait_for(std::chrono::milliseconds time);
  std::string
  take();  // the answer, or the exception that came instead; only once wait_for said true
  void cancel() { stop_.request_stop(); }

 private:
  friend class ModelWorker;
  void run(const Model& model);
  void fail(std::exception_ptr error);
  void finish();
  Place progress() const;

  Work work_;
  std::size_t memory_budget_;
  const std::string ticket_;  // a name that whoever asked gave it; may be empty
  std::stop_source stop_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Place progress_;
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
  std::shared_ptr<Job> submit(Work work, std::string ticket = {});
  // Where the question with this ticket stands; nothing where none waits or runs.
  std::optional<Place> place(const std::string& ticket) const;
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
