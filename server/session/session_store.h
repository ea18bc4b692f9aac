#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/request/request.h"
#include "server/request/session_command.h"
#include "server/sampling/token_history.h"
#include "server/session/image_memory.h"

namespace recurve {

// Everything a text has come to, outside a slot. Copies share the image.
struct Snapshot {
  int64_t position = 0;            // tokens absorbed
  std::optional<int32_t> pending;  // sampled last, not absorbed
  TokenHistory history;            // as end_request() leaves it
  StateImage image;                // null: nothing absorbed yet, all zero
};

// A named state. It is in a slot, or in an image, or still empty; while a request runs on it, the
// request's sequence holds the slot. The members of `at` but the image are right in every tier.
// What the store counts and keeps in order is changed by the store alone.
struct Session {
  TenantId tenant = 0;
  std::string_view name;
  std::string parent = {};  // whose fork it is, by name; it may be closed since; empty: none
  Snapshot at;
  std::optional<StateSlot> slot = {};  // set: the state is here, and at.image is null
  bool busy = false;                   // a request is queued or running on it
  bool running = false;                // and has the state
  uint64_t epoch = 0;
  double ttl_seconds = 0;
  Clock::time_point last_used;
  Clock::time_point expires = Clock::time_point::max();  // max(): not as long as it is so
  std::map<std::string, Snapshot> marks;

  Tier tier() const;
};

struct SessionLimits {
  int64_t host_bytes = 0;          // for sessions and marks, all that they take outside slots
  double default_ttl_seconds = 0;  // 0: sessions stay until they are closed
};

// Sessions by tenant and name. Belongs to the engine's thread.
//
// Each session and each mark reserves the host memory of one state, whether it uses it now or not,
// and all else that it may come to take. So an idle session can always leave its slot, and running
// out of memory is an answer to the one who opens a session too many, never to a request on an old
// one. Where the system gives less than was reserved, std::bad_alloc leaves all as it was.
//
// States are on their way, to host memory or to a slot, while all else goes on: see StatePool.
class SessionStore {
 public:
  struct Counts {
    int total = 0, in_slot = 0, in_host = 0, empty = 0;
    int64_t host_bytes = 0;  // of images, in use, not reserved
  };

  // vocab: ids that sessions may see are below it. Pool and backend outlive the store.
  SessionStore(Backend& backend, StatePool& pool, const SessionLimits& limits, int32_t vocab);
  ~SessionStore();

  // What a session reserves: its state and all that maps and heap take for it, but for names of
  // more than 15 characters: its own and its parent's. A mark takes somewhat less, and reserves the
  // same.
  static int64_t bytes_each(const StateLayout& layout, int32_t vocab);

  // Carries out what the client asked for.
  SessionResult run(const SessionCommand& command, Clock::time_point now);

  // Null if the tenant has none of that name.
  Session* find(const std::string& name, TenantId tenant = kAnyone.tenant);

  // A request waits for its turn on the session, or no longer does.
  void set_busy(Session& session, bool busy);
  // The session's state, in a slot of its own, for a request to run on once the slot is ready. The
  // session must be in its slot, or a slot must be free.
  StateSlot check_out(Session& session);
  // Takes the state back, with what has become of it; `at` comes without its image.
  void check_in(Session& session, StateSlot slot, Snapshot at, Clock::time_point now);

  // Moves one session's state from its slot, which is free then, to host memory: that of the one
  // that has been idle longest; only then those of sessions whose request still waits for its turn.
  // False if no session is in a slot but those that a request is running on.
  bool evict_one();

  // Closes the sessions that have been idle for too long; of very many, some, and next_expiry() is
  // past then.
  void expire(Clock::time_point now);
  // When expire() will next have something to do; empty: never.
  std::optional<Clock::time_point> next_expiry() const;

  Counts counts() const;

 private:
  // All sessions, by when they expire.
  using ByExpiry = std::set<std::pair<Clock::time_point, Session*>>;
  class Change;
  struct Key {
    TenantId tenant;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };

  SessionResult open(const SessionCommand& command, Clock::time_point now);
  SessionResult fork(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult mark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult unmark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult rewind(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult close(Session& session, Clock::time_point now);
  SessionResult list(const SessionCommand& command, Clock::time_point now) const;

  // slot: with the state, where it has one already.
  SessionResult insert(Key key, const std::string& parent, Snapshot at,
                       std::optional<StateSlot> slot, std::optional<double> ttl,
                       Clock::time_point now);
  StateImage save(const StateSlot& slot);
  Snapshot snapshot(const Session& session);
  SessionInfo describe(const Session& session, Clock::time_point now) const;
  SessionResult described(const Session& session, Clock::time_point now) const;
  void touch(Session& session, Clock::time_point now);
  int64_t reserved_for(std::string_view name, std::string_view parent = {}) const;
  int64_t reserved_by(const Session& session) const;
  std::optional<SessionResult> no_room(std::string_view name, std::string_view parent = {}) const;
  void erase(Session& session);
  std::optional<StateSlot> take_slot(Session& session);
  int& count_of(const Session& session);

  StatePool& pool_;
  const SessionLimits limits_;
  const int64_t state_bytes_;
  const int64_t bytes_each_;
  ImageMemory images_;
  std::map<Key, Session> sessions_;
  std::vector<Session*> in_slots_;  // those with a slot
  ByExpiry by_expiry_;
  int in_slot_ = 0, in_host_ = 0, empty_ = 0;
  int64_t reserved_ = 0;  // bytes
  int64_t entries_ = 0;   // sessions and marks
};

}  // namespace recurve
