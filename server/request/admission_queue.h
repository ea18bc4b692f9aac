#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "server/request/request.h"
#include "server/request/session_command.h"

namespace recurve {

// The queue from the frontends to the engine. Bounded: a request counts until the engine calls
// count_removed(). Any thread may push; only the engine's thread takes and waits.
class AdmissionQueue {
 public:
  enum class Admission { kAccepted, kFull, kClosed };

  explicit AdmissionQueue(int max_waiting) : max_waiting_(max_waiting) {}

  // The frontend's side.
  Admission push(Request request);
  Admission post(SessionCommand command);
  void wake();   // a client's signals to its stream have changed
  void close();  // further pushes return kClosed; the contents stay
  int waiting() const;
  int max_waiting() const { return max_waiting_; }

  // Engine side.
  struct Arrivals {
    std::vector<Request> requests;
    std::vector<SessionCommand> commands;
  };
  Arrivals take();
  bool done() const;                 // closed and empty
  void count_removed(int requests);  // they no longer wait: admitted, refused or dropped
  void count_requeued();             // an admitted request waits again, with its further choices
  // Sleeps until an arrival, wake(), close() or the time `until`. Returns at once if one of them
  // has happened since the last take().
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
