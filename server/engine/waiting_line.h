#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "server/engine/sequence.h"
#include "server/observe/engine_metrics.h"
#include "server/request/admission_queue.h"
#include "server/session/session_store.h"

namespace recurve {

// The requests that have arrived and have no slot yet. They leave in the order they came: nobody
// overtakes a request that wants several slots at once. It need not wait for the slots of idle
// sessions, nor for those of sessions that stand behind it in the line. Belongs to the engine's
// thread.
class WaitingLine {
 public:
  // All references outlive the line.
  WaitingLine(AdmissionQueue& queue, SessionStore& sessions, StatePool& pool,
              EngineMetrics& metrics)
      : queue_(queue), sessions_(sessions), pool_(pool), metrics_(metrics) {}

  // Answers what is about sessions; lines up requests that can be served, refuses the others.
  void take_arrivals(Clock::time_point now);
  // Lets go of those that were cancelled or have run out of time.
  void drop_unwanted(Clock::time_point now);
  // The first in line, in its slot; null if nobody waits or there is no room for it.
  std::unique_ptr<Sequence> admit_next(Clock::time_point now);
  // Lets go of all of them.
  void drop_all(Finish why, Clock::time_point now);

  bool empty() const { return waiting_.empty(); }
  // The deadline that comes first.
  std::optional<Clock::time_point> next_deadline() const;

 private:
  // All that is to be absorbed before the first token is sampled.
  struct Input {
    std::vector<int32_t> ids;
    bool owed = false;                     // the first is the session's pending token
    std::optional<int32_t> replaced = {};  // the pending token that is not absorbed
  };
  struct Waiting {
    Request request;
    Input input;
    Session* session;  // marked busy for this request; null: none
  };

  void arrive(Request request);
  Input input_of(const Request& request, const Session* session) const;
  Ending refusal(const Request& request, const Session* session, const Input& input) const;
  void drop(const Waiting& waiting, Finish why, Clock::time_point now);
  bool make_room(size_t slots);
  std::unique_ptr<Sequence> start(Waiting waiting, Clock::time_point now);

  AdmissionQueue& queue_;
  SessionStore& sessions_;
  StatePool& pool_;
  EngineMetrics& metrics_;
  std::deque<Waiting> waiting_;
};

}  // namespace recurve
