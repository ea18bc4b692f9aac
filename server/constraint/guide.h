#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

class MaskWorkers;

// The ids that end an answer, and other limits on its ids in addition to the constraint.
struct GuideRules {
  std::vector<int32_t> ends = {};     // only where the text may end
  std::vector<int32_t> allowed = {};  // all allowed ids; empty: no limit
  int64_t min_tokens = 0;             // before that, an end only if nothing else is possible
  int32_t ids = 0;                    // size of the vocabulary
  uint64_t client = 0;                // of the answer
};

// The constraint of one answer: the mask of its next token, which MaskWorkers compute. Used by the
// engine's thread.
class Guide : public std::enable_shared_from_this<Guide> {
 public:
  Guide(std::shared_ptr<const Constraint> constraint, GuideRules rules);

  // Starts to compute the first mask.
  void begin(MaskWorkers& workers);
  // Appends this id to the answer, and starts to compute the next mask. Requires ready().
  void accept(int32_t id, MaskWorkers& workers);

  // Whether the mask of the next token is computed.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // One bit per id, in (ids / 32, rounded up) words. Requires ready().
  std::span<const uint32_t> mask() const { return mask_; }
  // Why the mask is empty, for the client; empty if it is not, or if the constraint is not the
  // cause. Requires ready().
  const std::string& error() const { return error_; }

  // A copy for another answer that continues from the same position. Requires ready().
  std::shared_ptr<Guide> fork() const;

 private:
  friend class MaskWorkers;
  void work(double began);  // on a worker, at this thread_seconds()
  void fill();

  const std::shared_ptr<const Constraint> constraint_;
  std::unique_ptr<Matcher> matcher_;  // set with the first mask
  const std::shared_ptr<const GuideRules> rules_;
  std::vector<uint32_t> allowed_;  // as a mask; empty: all
  std::vector<uint32_t> mask_;
  int64_t tokens_ = 0;
  int32_t accepted_ = -1;  // the id to pass to the matcher
  std::string error_;
  bool slow_ = false;  // one of its masks was slow
  std::atomic<bool> ready_{false};

  Guide(const Guide& other, std::unique_ptr<Matcher> matcher);
};

// A few threads, at least two, that compute masks. They start with the first mask. Answers with a
// slow mask use all threads except one, so that they do not delay others. A thread that delays a
// batch by one mask continues at a low priority, and another thread replaces it.
class MaskWorkers {
 public:
  // `ready` is called on a worker after each mask, and must not block.
  MaskWorkers(int threads, std::function<void()> ready)
      : threads_wanted_(threads), on_ready_(std::move(ready)) {}
  ~MaskWorkers();

  void post(std::shared_ptr<Guide> guide);
  // Waits until at most `allowed_late` of the requested masks are missing, or for the time `most`,
  // and then lowers the priority of threads with slow masks. Called before each step. Any thread.
  void wait(std::chrono::nanoseconds most, int allowed_late = 0);

 private:
  struct Worker {
    std::thread thread;
    int number = 0;               // gettid(), set by the thread
    clockid_t clock = {};         // of its processor time, set by the thread
    std::optional<double> began;  // processor time at the beginning of the current mask
    bool low = false;             // has a low priority; ends after this mask
    bool ended = false;           // can be joined
  };

  void work(Worker& self);
  void add_workers();
  void lower_slow_ones();
  bool slow_may_begin() const { return !slow_.empty() && slow_running_ < threads_wanted_ - 1; }

  const int threads_wanted_;
  const std::function<void()> on_ready_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<std::shared_ptr<Guide>> guides_, slow_;  // waiting
  int unfinished_ = 0;                                // waiting or being computed
  int slow_running_ = 0;                              // slow ones being computed
  int allowed_late_ = 0;                              // of wait()
  bool ending_ = false;
  std::list<Worker> workers_;
  int low_ = 0;  // workers of low priority
};

}  // namespace recurve
