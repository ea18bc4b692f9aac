#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "server/request/request.h"
#include "server/request/session_command.h"

namespace recurve {

// The one way from a frontend to the engine. Bounded: requests that wait for a slot count until
// the engine calls count_removed(). Any thread may push; the engine's thread alone takes and waits.
class AdmissionQueue {
 public:
  enum class Admission { kAccepted, kFull, kClosed };

  explicit AdmissionQueue(int max_waiting) : max_waiting_(max_waiting) {}

  // The frontend's side.
  Admission push(Request request);
  Admission post(SessionCommand command);
  void wake();   // a client's signals to its stream have changed
  void close();  // from now on everything is refused with kClosed; what is inside stays
  int waiting() const;
  int max_waiting() const { return max_waiting_; }

  // Engine side.
  struct Arrivals {
    std::vector<Request> requests;
    std::vector<SessionCommand> commands;
  };
  Arrivals take();
  bool done() const;                 // closed, and all that came in before has been taken
  void count_removed(int requests);  // that many no longer wait: admitted, refused or given up
  void count_requeued();             // one that had left waits again, for the rest of its choices
  // Sleeps until something arrives, wake() or close() is called, or `until` has come. Returns at
  // once if any of it happened since the last take().
  void wait(std::optional<Clock::time_point> until);

 private:
  const int max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Arrivals arrivals_;
  int waiting_ = 0;
  bool closed_ = false;
  bool news_ = false;
};

}  // namespace recurve
