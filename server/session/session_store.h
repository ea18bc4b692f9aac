#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/state/state_pool.h"
#include "server/request/request.h"
#include "server/request/session_command.h"
#include "server/sampling/token_history.h"

namespace recurve {

// Everything a text has come to, outside a slot. Copies share the image.
struct Snapshot {
  int64_t position = 0;            // tokens absorbed
  std::optional<int32_t> pending;  // sampled last, not absorbed
  TokenHistory history;
  std::shared_ptr<const StateImage> image;  // null: nothing absorbed yet, all zero
};

// A named state. It is in a slot, or in an image, or still empty; while a request runs on it, the
// request's sequence holds the slot. The members of `at` but the image are right in every tier.
struct Session {
  std::string name;
  Snapshot at;
  std::optional<StateSlot> slot = {};  // set: the state is here, and at.image is null
  bool busy = false;                   // a request is queued or running on it
  uint64_t epoch = 0;
  double ttl_seconds = 0;
  Clock::time_point last_used;
  std::map<std::string, Snapshot> marks;
};

struct SessionLimits {
  int64_t host_bytes = 0;          // for states outside slots
  double default_ttl_seconds = 0;  // 0: sessions stay until they are closed
};

// Sessions by name. Belongs to the engine's thread.
//
// Each session and each mark reserves the host memory of one state, whether it uses it now or not.
// So an idle session can always leave its slot, and running out of memory is an answer to the one
// who opens a session too many, never to a request on an old one.
class SessionStore {
 public:
  struct Counts {
    int total = 0, in_slot = 0, in_host = 0, empty = 0;
    int64_t host_bytes = 0;  // in use, not reserved
  };

  SessionStore(StatePool& pool, const SessionLimits& limits);

  // Carries out what the client asked for.
  SessionResult run(const SessionCommand& command, Clock::time_point now);

  Session* find(const std::string& name);  // null if there is none

  // The session's state, in a slot of its own, for a request to run on. The session must be in its
  // slot, or a slot must be free.
  StateSlot check_out(Session& session);
  // And back, with what has become of it.
  void check_in(Session& session, StateSlot slot, Clock::time_point now);

  // Moves one session's state from its slot to host memory: that of the one that has been idle
  // longest; only then those of sessions whose request still waits for its turn. False if no
  // session is in a slot but those that a request is running on.
  bool evict_one();

  // Closes the sessions that have been idle for too long.
  void expire(Clock::time_point now);
  // When expire() will next have something to do; empty: never.
  std::optional<Clock::time_point> next_expiry() const;

  Counts counts() const;

 private:
  SessionResult open(const SessionCommand& command, Clock::time_point now);
  SessionResult fork(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult mark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult unmark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult rewind(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult list(const SessionCommand& command, Clock::time_point now) const;

  SessionResult insert(const std::string& name, Snapshot at, std::optional<double> ttl,
                       Clock::time_point now);
  Snapshot snapshot(const Session& session) const;
  SessionInfo describe(const Session& session, Clock::time_point now) const;
  SessionResult described(const Session& session, Clock::time_point now) const;
  std::optional<SessionResult> no_room() const;
  void release(Session& session);  // its slot, and what it has reserved
  std::optional<StateSlot> take_slot(Session& session);

  StatePool& pool_;
  const SessionLimits limits_;
  const int64_t state_bytes_;
  std::map<std::string, Session> sessions_;
  std::vector<Session*> in_slots_;  // those with a slot
  int64_t reserved_ = 0;            // states: one a session, one a mark
};

}  // namespace recurve
