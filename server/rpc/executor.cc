#include "server/rpc/executor.h"

#include <memory>
#include <utility>

namespace recurve {
namespace {

class Job final : public Executor::Task {
 public:
  explicit Job(std::function<void()> job) : job_(std::move(job)) {}
  void run() override {
    const std::unique_ptr<Job> self(this);
    job_();
  }

 private:
  std::function<void()> job_;
};

}  // namespace

Executor::Executor(int threads, OnFailure on_failure) : on_failure_(std::move(on_failure)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::post(Task* task) { push(task, std::unique_lock(mutex_)); }

void Executor::post(std::function<void()> job) { post(new Job(std::move(job))); }

bool Executor::try_post(Task* task, size_t most) {
  std::unique_lock lock(mutex_);
  if (tasks_.size() >= most) return false;
  push(task, std::move(lock));
  return true;
}

void Executor::push(Task* task, std::unique_lock<std::mutex> lock) {
  tasks_.push_back(task);
  const bool wake = asleep_ > woken_;
  if (wake) ++woken_;
  lock.unlock();
  if (wake) changed_.notify_one();
}

void Executor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!tasks_.empty()) {
      Task* task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      run(*task);
      lock.lock();
    } else if (ending_) {
      return;
    } else {
      ++asleep_;
      changed_.wait(lock, [this] { return woken_ > 0 || ending_; });
      --asleep_;
      if (woken_ > 0) --woken_;
    }
  }
}

void Executor::run(Task& task) {
  try {
    task.run();
  } catch (const std::exception& error) {
    if (!on_failure_) throw;
    on_failure_(error.what());
  }
}

void Strand::add(int pokes) {
  if (pokes_.fetch_add(pokes) == 0) executor_.post(this);
}

void Strand::run() {
  const int seen = pokes_.load();
  if (seen >= kRetired) {
    delete this;
    return;
  }
  try {
    work();
  } catch (const std::exception& error) {
    failed(error);
  }
  // Behind all others, not at once: no strand keeps a thread to itself.
  if (pokes_.fetch_sub(seen) != seen) executor_.post(this);
}

}  // namespace recurve
