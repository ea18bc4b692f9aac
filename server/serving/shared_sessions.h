#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/recorded_answer.h"
#include "server/object_store/remote_sessions.h"
#include "server/request/clock.h"
#include "server/request/executor.h"
#include "server/request/refusal.h"
#include "server/request/tenant_meter.h"

namespace recurve {

struct ServedModel;
class ServerCore;
class SharedSessions;

// Memory for what is read from a store and written to it. A thread waits until there is enough; one
// gets all it wants.
class TransferMemory {
 public:
  explicit TransferMemory(int64_t most_bytes) : most_(most_bytes) {}
  class Share {
   public:
    Share(TransferMemory& of, int64_t bytes) : of_(of), bytes_(bytes) {}
    ~Share() { of_.give_back(bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    TransferMemory& of_;
    const int64_t bytes_;
  };
  Share take(int64_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return used_ == 0 || used_ + bytes <= most_; });
    used_ += bytes;
    return {*this, bytes};
  }

 private:
  void give_back(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    changed_.notify_all();
  }
  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t used_ = 0;
};

// The turn of one call on a session that may be shared. Used by one thread at a time; wake() is
// called on any thread and may only post. Whatever is not committed when it is destroyed leaves the
// session as it was.
class SharedTurn {
 public:
  struct Begun {
    Refused refused = {};
    bool shared = false;  // the session is in the store; false: it is the engine's alone
    std::optional<RecordedAnswer> recorded = {};  // the request was answered before: by `commit`
    CommitInfo commit = {};
  };
  struct Committed {
    Refused refused = {};
    CommitInfo commit = {};
  };

  // The request: with its session, its id and all that its digest is of.
  SharedTurn(SharedSessions& sessions, const Identity& caller, const Request& request,
             std::function<void()> wake);
  ~SharedTurn();
  SharedTurn(const SharedTurn&) = delete;
  SharedTurn& operator=(const SharedTurn&) = delete;

  // Once, after wake(); nothing before that.
  std::optional<Begun> begun();
  // The turn has ended with that answer, whose digest is added. After begun() that is shared and
  // neither refused nor recorded.
  void commit(RecordedAnswer answer);
  // Or it was refused before anything was computed.
  void leave_unchanged();
  // Once, after wake(); nothing before that.
  std::optional<Committed> committed();

 private:
  friend class SharedSessions;
  struct State;
  SharedSessions& sessions_;
  const std::shared_ptr<State> state_;
};

// Sessions of durability remote: the truth is in an object store that several servers share, and
// the engine has a copy, which does not outlive a change that the store does not have. A turn
// begins with the state of the session's head, where the engine lacks it, and its end waits for the
// commit. Whatever goes wrong, the engine's copy is closed, and the next turn begins with the head
// again.
//
// A session has one turn at a time; others wait. Calls to the store block threads of this class
// alone. Any thread. The engine runs as long as there are turns or commands.
class SharedSessions {
 public:
  // seal: null: nothing is sealed. is_checked: the store has passed its check(); otherwise it must
  // before it is used. most_transfers: bytes of states that are read and written at once; a single
  // one that is larger waits for all others. name: of this server, for messages. All outlive the
  // sessions.
  SharedSessions(ObjectStore& store, StoreSeal* seal, bool is_checked, int64_t most_transfers,
                 const std::string& name, ServerCore& core);
  ~SharedSessions();  // waits for what has begun

  // Its sessions can be shared: it is the first one.
  bool is_of(const ServedModel& model) const;
  // Moves the sessions that the engine has alone into the store, the largest first, until the
  // deadline: they have durability remote then, without their marks. For the end of a drain, when
  // there are no requests.
  struct Moved {
    int moved = 0, failed = 0;
    int late = 0;  // not moved by the deadline
  };
  Moved move_to_store(Clock::time_point deadline);

  // A command on a session of any durability; the engine alone gets it unless it concerns a shared
  // one. Its done() may be called on another thread than the engine's.
  Refused post(SessionCommand command);

 private:
  friend class SharedTurn;
  using Key = std::pair<TenantId, std::string>;
  using Outcome = RemoteSessions::Outcome;
  using Result = RemoteSessions::Result;
  using TurnState = std::shared_ptr<SharedTurn::State>;
  struct Entry;
  struct Work {
    TenantId share = 0;  // Identity::share()
    std::function<void(Entry&)> run;
  };
  struct Entry {
    OwnedSession owned = {};
    bool busy = false;
    Clock::time_point used = {};
    std::deque<Work> waiting = {};
    // Guarded by the mutex; the rest belongs to the work that holds the entry.
    bool here = false;       // the engine has the state of owned.head
    bool runs = false;       // a turn runs on it
    CommitInfo commit = {};  // the last one, if it is here
  };

  ServedModel& model() const;
  // Runs the work on a thread of this class once no other work has the session; it calls release().
  // Refuses if too much waits, of all tenants or of the caller's, except for the end of a drain.
  Refused hold(const Identity& caller, const std::string& name, std::function<void(Entry&)> work,
               bool drains = false);
  // Counts work that begins or waits, until leave(), or refuses it. With the mutex.
  Refused enter(const Identity& caller, bool bounded = true);
  void leave(const Identity& caller);
  void release(const Identity& caller, const std::string& name);
  // On the threads, which tenants use in turn.
  void run(TenantId share, std::function<void()> job);
  void set_here(Entry& entry, bool here, int64_t position = 0);
  void set_runs(Entry& entry, bool runs);

  // On a thread of this class, which holds the entry.
  void begin(const TurnState& turn, Entry& entry);
  SharedTurn::Begun begun(SharedTurn::State& turn, Entry& entry);
  std::optional<SharedTurn::Begun> recorded(const SharedTurn::State& turn, const SessionHead& head);
  Refused fetch(const Identity& caller, const std::string& name, Entry& entry,
                const std::function<bool()>& stop);
  TransferMemory::Share memory_for(const SessionHead& head);
  Result read_text(const SessionHead& head, std::string* text);
  Result read(const Identity& caller, const SessionHead& head, SessionCommand* command);
  Refused place(const SessionCommand& command);
  void commit(const TurnState& turn, Entry& entry);
  SharedTurn::Committed committed(const SharedTurn::State& turn, Entry& entry);
  Result write(Entry& entry, const SessionResult& exported, const std::string& request,
               const RecordedAnswer* answer,
               const std::function<Result(const RemoteSessions::Commit&)>& write);
  void count(Outcome commit, double seconds);
  void drop(const Identity& caller, const std::string& name, Entry& entry);
  SessionResult moved(const Identity& caller, const SessionInfo& of, Entry& entry);
  Result create_from_engine(const Identity& caller, const std::string& name, Entry& entry,
                            SessionInfo* info);
  SessionResult look_at(SessionCommand command, Entry& entry);
  SessionResult create(SessionCommand command, Entry& entry);
  SessionResult close(SessionCommand command, Entry& entry);

  // On a thread of this class.
  Refused unusable();
  SessionResult ask(SessionCommand command);
  std::vector<SessionInfo> sessions_of_engine(const Identity& caller);
  bool close_idlest_copy(Clock::time_point since);
  void close_idle_copies();
  void look_in_store(SessionCommand command, SessionResult otherwise);
  SessionResult answer_from(const SessionCommand& command, const SessionHead& head);

  // On any thread.
  Refused post_create(SessionCommand command);
  Refused post_on_copy(SessionCommand command, bool runs);
  Refused post_described(SessionCommand command);
  using OfCommand = SessionResult (SharedSessions::*)(SessionCommand, Entry&);
  Refused hold_for(SessionCommand command, OfCommand work);
  void describe(const Identity& caller, SessionResult* result);
  static Refused refusal(const Result& result);

  ServerCore& core_;
  ObjectStore& store_;
  RemoteSessions sessions_;
  std::mutex checking_;  // guards checked_at_
  Clock::time_point checked_at_ = {};
  std::atomic<bool> is_checked_;
  TransferMemory transfers_;
  std::mutex mutex_;              // guards the members below
  std::map<Key, Entry> entries_;  // an entry in use is not removed
  int waiting_ = 0;               // turns and commands that have begun or wait
  TenantMeter waiting_of_;        // each tenant

  Executor threads_;  // last: they use the others
};

}  // namespace recurve
