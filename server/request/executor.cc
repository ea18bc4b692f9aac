#include "server/request/executor.h"

#include <algorithm>
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

Executor::Executor(int threads, OnFailure on_failure)
    : most_long_(std::max(threads - 1, 1)), on_failure_(std::move(on_failure)) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  // What another executor's thread has posted may be done before that thread has left wake_one().
  while (waking_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

void Executor::post(Task* task) { push(task, 0, 0, std::unique_lock(mutex_)); }

void Executor::post(Task* task, size_t bytes, TenantId share) {
  push(task, TaskLanes<Task>::lane_of(bytes), share, std::unique_lock(mutex_));
}

void Executor::post(std::function<void()> job, TenantId share) {
  post(new Job(std::move(job)), 0, share);
}

bool Executor::try_post(Task* task, size_t bytes, size_t most, TenantId share) {
  const int lane = TaskLanes<Task>::lane_of(bytes);
  std::unique_lock lock(mutex_);
  if (tasks_.waiting(lane) >= most) return false;
  const bool has_one = share != 0 && tasks_.waiting(lane, share) > 0;
  if (has_one && tasks_.waiting_of_group(lane, share) >= most - most / 8) return false;
  push(task, lane, share, std::move(lock));
  return true;
}

// A thread that sleeps because only long tasks waited may take this one.
void Executor::hasten(const Task* task) {
  std::unique_lock lock(mutex_);
  tasks_.hasten(task);
  wake_one(std::move(lock));
}

void Executor::push(Task* task, int lane, TenantId share, std::unique_lock<std::mutex> lock) {
  tasks_.push(task, lane, share);
  wake_one(std::move(lock));
}

void Executor::wake_one(std::unique_lock<std::mutex> lock) {
  if (asleep_ <= woken_) return;
  ++woken_;
  waking_.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  changed_.notify_one();
  waking_.fetch_sub(1, std::memory_order_release);
}

void Executor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = tasks_.pop(long_ones_ < most_long_);
    if (next.task != nullptr) {
      run(next, lock);
    } else if (ending_) {
      return;  // who runs a long task runs those behind it too
    } else {
      ++asleep_;
      changed_.wait(lock, [this] { return woken_ > 0 || ending_; });
      --asleep_;
      if (woken_ > 0) --woken_;
    }
  }
}

void Executor::run(TaskLanes<Task>::Next next, std::unique_lock<std::mutex>& lock) {
  if (next.is_long) ++long_ones_;
  lock.unlock();
  try {
    next.task->run();
  } catch (const std::exception& error) {
    if (!on_failure_) throw;
    on_failure_(error.what());
  }
  lock.lock();
  if (next.is_long) --long_ones_;
}

void Strand::add(int pokes) {
  if (pokes_.fetch_add(pokes) == 0) post();
}

void Strand::post() {
  waited_to_read_ = to_read_.exchange(0);
  executor_.post(this, waited_to_read_, share_);
}

bool Strand::launch_here(size_t bytes, size_t waited) {
  using Lanes = TaskLanes<Executor::Task>;
  if (Lanes::lane_of(bytes) > Lanes::lane_of(waited)) return false;
  waited_to_read_ = waited;
  run();
  return true;
}

bool Strand::may_read(size_t bytes) {
  using Lanes = TaskLanes<Executor::Task>;
  if (Lanes::lane_of(bytes) <= Lanes::lane_of(waited_to_read_)) return true;
  to_read_ = bytes;
  poke();
  return false;
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
  // Queued behind all others, so that a strand does not occupy a thread.
  if (pokes_.fetch_sub(seen) != seen) post();
}

}  // namespace recurve
