#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"

namespace recurve {

// Large copies on a separate thread, one after the other, in the order in which they were asked
// for, so that a copy finds what those before it have written. The thread that asks does not wait.
// Only one thread asks.
class Copier {
 public:
  // Number of a copy: 1, 2, 3 and so on. 0 is done, as is whatever was never asked for.
  using Ticket = uint64_t;

  struct Job {
    std::vector<CopyPiece> pieces;
    std::function<void()> before = {};            // called first, on the copier's thread; or none
    std::shared_ptr<const void> keeps = nullptr;  // what must live until it is done
  };

  // on_done: called after each copy, on the copier's thread: may only post. The backend outlives
  // the copier.
  explicit Copier(Backend& backend, std::function<void()> on_done = {});
  ~Copier();  // once all copies are done
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // The copy begins when all that `after` has queued until now is done, and returns at once. Throws
  // std::bad_alloc, and then nothing has been asked for.
  Ticket start(Job job, Stream& after);
  // These throw std::runtime_error once a copy has failed: none after it is made.
  bool done(Ticket ticket) const;
  void wait(Ticket ticket);
  // Until none is under way, whether or not one has failed; nothing is kept then.
  void wait_for_all() noexcept;

  Ticket last() const { return last_; }  // asked for

 private:
  struct Work {
    Job job;
    std::unique_ptr<Event> after;
  };
  void run();
  bool make(const Work& work, std::unique_ptr<Stream>* stream);
  void throw_if_failed() const;
  std::unique_ptr<Event> take_event();

  Backend& backend_;
  const std::function<void()> on_done_;
  Ticket last_ = 0;
  std::atomic<Ticket> done_{0};
  std::atomic<bool> failed_{false};

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool copying_ = false;
  std::vector<std::unique_ptr<Event>> events_;  // not in use
  size_t all_events_ = 0;
  std::string failure_;
  bool closed_ = false;

  std::thread thread_;
};

}  // namespace recurve
