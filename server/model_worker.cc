#include "model_worker.h"

#include <system_error>
#include <utility>

#include "unpack/error.h"

namespace unpack::server {

bool Job::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return done_; });
}

std::string Job::take() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return std::move(answer_);
}

void Job::run(const Model& model) {
  try {
    RunContext context;
    context.stop = stop_.get_token();
    context.memory_budget = memory_budget_;
    context.progress = [this](const Progress& now) {
      const std::lock_guard lock(mutex_);
      progress_ = {0, true, std::string(now.what), now.done, now.total};
    };
    context.check();
    std::string answer = work_(model, context);
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  finish();
}

Place Job::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void Job::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  finish();
}

void Job::finish() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
}

ModelWorker::ModelWorker(std::string name, LoadOptions load, std::size_t max_waiting,
                         std::size_t memory_budget)
    : name_(std::move(name)),
      load_(std::move(load)),
      max_waiting_(max_waiting),
      memory_budget_(memory_budget) {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
  } catch (const std::system_error& error) {
    throw InputError("cannot start a thread (" + error.code().message() +
                     "): raise the limit on processes or memory (ulimit -u, ulimit -v)");
  }
}

ModelWorker::~ModelWorker() {
  thread_.request_stop();
  cancel_all();
}

std::shared_ptr<const Model> ModelWorker::loaded() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

std::optional<Place> ModelWorker::place(const std::string& ticket) const {
  const std::lock_guard lock(mutex_);
  if (ticket.empty()) return std::nullopt;
  if (running_ && running_->ticket_ == ticket) {
    Place place = running_->progress();
    place.running = true;
    return place;
  }
  std::size_t before = running_ ? 1 : 0;
  for (const std::shared_ptr<Job>& job : waiting_) {
    if (job->ticket_ == ticket) return Place{before, false, {}, 0, 0};
    if (!job->stop_.stop_requested()) ++before;
  }
  return std::nullopt;
}

std::shared_ptr<Job> ModelWorker::submit(Work work, std::string ticket) {
  auto job = std::make_shared<Job>(std::move(work), memory_budget_, std::move(ticket));
  {
    const std::lock_guard lock(mutex_);
    // Those given up while they waited hold a place no longer.
    std::erase_if(waiting_,
                  [](const std::shared_ptr<Job>& other) { return other->stop_.stop_requested(); });
    if (waiting_.size() >= max_waiting_) return nullptr;
    waiting_.push_back(job);
  }
  changed_.notify_one();
  return job;
}

std::size_t ModelWorker::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() + (running_ ? 1 : 0);
}

void ModelWorker::cancel_all() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Job>& job : waiting_) job->cancel();
  if (running_) running_->cancel();
}

std::shared_ptr<const Model> ModelWorker::load() {
  if (auto model = loaded()) return model;
  auto model = std::make_shared<const Model>(Model::load(name_, load_));
  const std::lock_guard lock(mutex_);
  model_ = model;
  return model;
}

void ModelWorker::loop(const std::stop_token& stop) {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) break;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = job;
    }
    try {
      const std::shared_ptr<const Model> model = load();
      job->run(*model);
    } catch (...) {
      job->fail(
          std::current_exception());  // the model cannot be loaded; the next question tries again
    }
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
  }
}

}  // namespace unpack::server
