#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/request/task_lanes.h"

namespace recurve {

// A thread pool. Tasks run in the order of TaskLanes. If there are several threads, one of them
// runs no long tasks.
class Executor {
 public:
  // Not owned: it must live until it has run.
  class Task {
   public:
    virtual void run() = 0;

   protected:
    ~Task() = default;
  };

  // Called for each task that throws, on one of the threads, with one line for the log. Absent: the
  // process ends.
  using OnFailure = std::function<void(const char* what)>;

  // Throws std::system_error if a thread cannot start.
  explicit Executor(int threads, OnFailure on_failure = {});
  ~Executor();  // runs the remaining tasks, then joins the threads

  // Any thread, also one that holds locks: takes a lock for a short time and does not block.
  void post(Task* task);
  // Of the tenant with that share: tasks of several tenants take turns.
  void post(std::function<void()> job, TenantId share = 0);
  // The same of a task that reads `bytes`.
  void post(Task* task, size_t bytes, TenantId share);
  // The same. False, without effect, if `most` tasks of the lane wait already, or seven eighths of
  // that from one group; the rest is for shares without a waiting task.
  bool try_post(Task* task, size_t bytes, size_t most, TenantId share = 0);
  // Lets a waiting task run soon, because its result is no longer needed. No effect once it runs.
  void hasten(const Task* task);

 private:
  void work();
  void stop();
  void push(Task* task, int lane, TenantId share, std::unique_lock<std::mutex> lock);
  void wake_one(std::unique_lock<std::mutex> lock);
  void run(TaskLanes<Task>::Next next, std::unique_lock<std::mutex>& lock);

  const int most_long_;  // at once
  const OnFailure on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TaskLanes<Task> tasks_;
  int long_ones_ = 0;  // running
  // A wake-up is a system call, so there is at most one for each sleeping thread.
  int asleep_ = 0;
  int woken_ = 0;               // of those, already woken
  std::atomic<int> waking_{0};  // threads that are about to wake one
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// Serialized work: work() never runs on two threads at once, so its data needs no lock. Several
// pokes before a run are one run. Nothing runs before launch().
class Strand : private Executor::Task {
 public:
  // Schedules work() on the executor, to run at least once after this call. Does not block.
  void poke() { add(1); }

 protected:
  explicit Strand(Executor& executor) : executor_(executor) {}
  virtual ~Strand() = default;

  // See Executor::try_post(). Call it before the launch.
  void set_share(TenantId share) { share_ = share; }
  void launch() { executor_.post(this); }
  // Runs the first work() on another executor, by try_post(). False, without a launch, if too many
  // tasks wait there.
  bool launch_on(Executor& other, size_t bytes, size_t most) {
    waited_to_read_ = bytes;
    return other.try_post(this, bytes, most, share_);
  }
  // Runs the first work() in this call; the strand may be deleted when it returns. False, without a
  // launch, if `bytes` belong to a longer lane than the current task, which reads `waited` bytes.
  bool launch_here(size_t bytes, size_t waited);
  // For work(): whether it may read `bytes` now. If not, it is called again after it has waited in
  // the lane of that length.
  bool may_read(size_t bytes);
  // Executor::hasten() for the first work().
  void hasten_on(Executor& other) { other.hasten(this); }

  virtual void work() = 0;
  // work() has thrown: end what the strand does. For exceptions other than std::bad_alloc, what()
  // is one line for the log. Further pokes run work() again. If this throws too, the executor
  // fails.
  virtual void failed(const std::exception& error) = 0;

  // The last poke: the strand deletes itself after a running work(), without another one. One
  // atomic operation, so that no other thread can delete it at the same time.
  void retire() { add(kRetired); }

 private:
  static constexpr int kRetired = 1 << 30;

  void run() final;
  void add(int pokes);
  void post();

  Executor& executor_;
  TenantId share_ = 0;
  // Bytes that the next work() is to read, and those for which the posted one has waited.
  std::atomic<size_t> to_read_{0};
  size_t waited_to_read_ = 0;
  // Pokes since the last work() began; a task is posted while there are any. The launch is the
  // first.
  std::atomic<int> pokes_{1};
};

}  // namespace recurve
