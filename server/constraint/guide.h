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

// Which ids of an answer end it, and which may come at all, besides what its constraint says.
struct GuideRules {
  std::vector<int32_t> ends = {};     // come only where the text may end
  std::vector<int32_t> allowed = {};  // nothing else; empty: all
  int64_t min_tokens = 0;             // before that, an end comes only where nothing else can
  int32_t ids = 0;                    // there are
  uint64_t client = 0;                // whose answer it is
};

// Keeps an answer to its constraint: what its next token may be, worked out by MaskWorkers. Belongs
// to the engine's thread.
class Guide : public std::enable_shared_from_this<Guide> {
 public:
  Guide(std::shared_ptr<const Constraint> constraint, GuideRules rules);

  // Works out the first mask.
  void begin(MaskWorkers& workers);
  // The answer goes on with this id: works out the next mask. The last one was ready.
  void accept(int32_t id, MaskWorkers& workers);

  // Whether the mask of the next token is there.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // One bit an id, (ids / 32, rounded up) words. While ready().
  std::span<const uint32_t> mask() const { return mask_; }
  // Why nothing can come, for whoever asked, in a sentence; empty where the mask is not, or for no
  // fault of the constraint. While ready().
  const std::string& error() const { return error_; }

  // One for another answer, which goes on from here. While ready().
  std::shared_ptr<Guide> fork() const;

 private:
  friend class MaskWorkers;
  void work(double began);  // on a worker, whose thread_seconds() these were
  void fill();

  const std::shared_ptr<const Constraint> constraint_;
  std::unique_ptr<Matcher> matcher_;  // since the first mask
  const std::shared_ptr<const GuideRules> rules_;
  std::vector<uint32_t> allowed_;  // as a mask; empty: all
  std::vector<uint32_t> mask_;
  int64_t tokens_ = 0;
  int32_t accepted_ = -1;  // still to be told to the matcher
  std::string error_;
  bool slow_ = false;  // one of its masks has been
  std::atomic<bool> ready_{false};

  Guide(const Guide& other, std::unique_ptr<Matcher> matcher);
};

// A few threads, two at least, that work masks out. They start with the first one. Those of answers
// of which one took long have all threads but one, so that they hold up no others; and a thread
// that is at one mask for longer than the rest of a batch would notice goes on at a low priority,
// with another in its place.
class MaskWorkers {
 public:
  // `ready` is called on a worker whenever a mask is there: may only post.
  MaskWorkers(int threads, std::function<void()> ready)
      : threads_wanted_(threads), on_ready_(std::move(ready)) {}
  ~MaskWorkers();

  void post(std::shared_ptr<Guide> guide);
  // Until no more than `left` of the masks that were asked for are still to come, but not for long.
  // Any thread. Whoever asks for a mask comes here before each step without it, so that this is
  // where threads are lowered.
  void wait(std::chrono::nanoseconds most, int left = 0);

 private:
  struct Worker {
    std::thread thread;
    int number = 0;               // the system's, which it has itself noted once it has begun
    clockid_t clock = {};         // likewise, of its processor time
    std::optional<double> began;  // the mask that it is at, in seconds of its processor time
    bool low = false;             // ends with this mask
    bool ended = false;           // but for being joined
  };

  void work(Worker& self);
  void add_workers();
  void lower_slow_ones();
  bool slow_may_begin() const { return !slow_.empty() && slow_under_way_ < threads_wanted_ - 1; }

  const int threads_wanted_;
  const std::function<void()> on_ready_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<std::shared_ptr<Guide>> guides_, slow_;  // that wait
  int under_way_ = 0;                                 // wait, or are being worked out
  int slow_under_way_ = 0;                            // are being worked out
  int left_ = 0;                                      // that who waits does without
  bool ending_ = false;
  std::list<Worker> workers_;
  int low_ = 0;  // of them
};

}  // namespace recurve
