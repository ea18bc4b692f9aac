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

// A few threads that run what is posted to them: short tasks in the order they came, and those that
// read much behind them as TaskLanes says. Where there are several threads, one is kept free of
// long tasks.
class Executor {
 public:
  // What can be run. Not owned: it lives at least until it has run.
  class Task {
   public:
    virtual void run() = 0;

   protected:
    ~Task() = default;
  };

  // Called with one line for the log, on one of the threads, for each task that throws. Not said:
  // the process ends then.
  using OnFailure = std::function<void(const char* what)>;

  explicit Executor(int threads, OnFailure on_failure = {});
  ~Executor();  // runs what is left, then ends its threads

  // Any thread, also one that holds locks: takes a short lock and never waits.
  void post(Task* task);
  void post(std::function<void()> job);
  // A task that reads so many bytes, of the tenant with that share of the threads: tasks of several
  // tenants take turns.
  void post(Task* task, size_t bytes, TenantId share);
  // The same. False, and nothing happens, where `most` about as long wait already, or, of one
  // group of shares, seven eighths of that: the rest is for shares of which none waits.
  bool try_post(Task* task, size_t bytes, size_t most, TenantId share = 0);
  // A task that waits need not wait for long: its result is not wanted any more. Nothing where it
  // runs, or has run.
  void hasten(const Task* task);

 private:
  void work();
  void push(Task* task, int lane, TenantId share, std::unique_lock<std::mutex> lock);
  void wake_one(std::unique_lock<std::mutex> lock);
  void run(TaskLanes<Task>::Next next, std::unique_lock<std::mutex>& lock);

  const int most_long_;  // at once
  const OnFailure on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TaskLanes<Task> tasks_;
  int long_ones_ = 0;  // that run
  // A wake-up costs the poster a system call, so there is at most one for each sleeping thread.
  int asleep_ = 0;
  int woken_ = 0;               // of those, already told
  std::atomic<int> waking_{0};  // threads that are about to tell one
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// Work that is never run by two threads at once, however often and from wherever it is called for;
// calls for it while it waits are one. So what it touches needs no lock. Nothing runs before
// launch().
class Strand : private Executor::Task {
 public:
  // Has work() called soon on the executor, at least once after this call began. Never waits.
  void poke() { add(1); }

 protected:
  explicit Strand(Executor& executor) : executor_(executor) {}
  virtual ~Strand() = default;

  // Whose it is, see Executor::try_post(). Before the launch.
  void set_share(TenantId share) { share_ = share; }
  void launch() { executor_.post(this); }
  // The first work() on another executor, as try_post() has it. False, and nothing is launched, if
  // too many wait there.
  bool launch_on(Executor& other, size_t bytes, size_t most) {
    waited_to_read_ = bytes;
    return other.try_post(this, bytes, most, share_);
  }
  // The first work(), on this thread and before this returns, after which the strand may be gone.
  // False, and nothing is launched, if it would read so much that it has to wait longer than this
  // thread's task did, which reads `waited` bytes.
  bool launch_here(size_t bytes, size_t waited);
  // Of work(): whether it may read so many bytes now. If it has not waited among tasks that are
  // about as long, it may not, and is called again once it has.
  bool may_read(size_t bytes);
  // That first work() need not wait for long.
  void hasten_on(Executor& other) { other.hasten(this); }

  virtual void work() = 0;
  // work() has thrown std::bad_alloc, or else with one line for the log: what the strand does is to
  // be ended. It is run again if it is called for. If this throws too, the executor has failed.
  virtual void failed(const std::exception& error) = 0;

  // The last poke: when a work() under way has ended, the strand deletes itself, without another
  // one. A single step, so that no other thread can delete it meanwhile.
  void retire() { add(kRetired); }

 private:
  static constexpr int kRetired = 1 << 30;

  void run() final;
  void add(int pokes);
  void post();

  Executor& executor_;
  TenantId share_ = 0;
  // Bytes: that the next work() is to read, and for which the one that is posted has waited.
  std::atomic<size_t> to_read_{0};
  size_t waited_to_read_ = 0;
  // Since the last work() began; a task is posted while there are any. The first is the launch.
  std::atomic<int> pokes_{1};
};

}  // namespace recurve
