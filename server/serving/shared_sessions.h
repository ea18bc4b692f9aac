#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/engine/recorded_answer.h"
#include "server/object_store/remote_sessions.h"
#include "server/request/clock.h"
#include "server/request/executor.h"
#include "server/request/refusal.h"
#include "server/request/tenant_meter.h"
#include "server/serving/head_record.h"
#include "server/serving/transfer_memory.h"

namespace recurve {

struct ServedModel;
class ServerCore;
class SharedSessions;

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
  // deadline, and their marks: they have durability remote then. For the end of a drain, when there
  // are no requests.
  struct Moved {
    int moved = 0, failed = 0;
    int late = 0;       // not moved by the deadline
    int64_t marks = 0;  // of the sessions that moved, which could not, and are lost
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
    bool here = false;        // the engine has the state of owned.head
    bool runs = false;        // a turn runs on it
    SessionInfo stored = {};  // what the store has of it, if it is here
  };

  static std::string tenant_of(const Identity& caller) { return std::string(caller.tenant_name); }
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
  void set_here(Entry& entry, bool here);
  void set_runs(Entry& entry, bool runs);

  // On a thread of this class, which holds the entry.
  void begin(const TurnState& turn, Entry& entry);
  SharedTurn::Begun begun(SharedTurn::State& turn, Entry& entry);
  std::optional<SharedTurn::Begun> recorded(const SharedTurn::State& turn, const SessionHead& head);
  Refused fetch(const Identity& caller, const std::string& name, Entry& entry,
                const std::function<bool()>& stop);
  TransferMemory::Share memory_for(const SessionHead& head, const HeadRecord& record,
                                   const HeadRecord::Mark& at);
  Result read_text(const SessionHead& head, int blob, std::string* text);
  using UseState = std::function<void(std::string text, uint64_t all_bytes, const ReadGroup& read)>;
  Result read_state(const SessionHead& head, const HeadRecord& record, const HeadRecord::Mark& at,
                    const UseState& use);
  Result read(const Identity& caller, const SessionHead& head, const HeadRecord& record,
              const HeadRecord::Mark& at, SessionCommand* command);
  Refused place(const SessionCommand& command);
  void commit(const TurnState& turn, Entry& entry);
  SharedTurn::Committed committed(const SharedTurn::State& turn, Entry& entry);
  // Objects of a state for the store.
  struct StateObjects {
    std::list<WrittenParts> parts = {};
    std::vector<std::vector<std::string_view>> objects = {};  // which have these parts
    std::optional<HeadRecord::Group> group = {};              // the first of two
    int64_t bytes = 0;
  };
  StateObjects objects_of(StateParts& state, HeadRecord* record);
  static HeadRecord::Mark add_state(const StateObjects& state, int before, HeadRecord* record,
                                    RemoteSessions::Commit* commit);
  void count_written(const StateObjects& state);
  Result write_mark(Entry& entry, const MarkInfo& mark, const SessionResult& exported);
  Result write(Entry& entry, const SessionResult& exported, const std::string& request,
               const RecordedAnswer* answer, HeadRecord record,
               const std::function<Result(const RemoteSessions::Commit&)>& write);
  void count(Outcome commit, double seconds);
  void drop(const Identity& caller, const std::string& name, Entry& entry);
  struct Moving {
    SessionResult result;
    std::vector<MarkInfo> marks_left = {};
    std::string why_left = {};
  };
  Moving moved(const Identity& caller, const SessionInfo& of, Clock::time_point deadline,
               Entry& entry);
  void move_marks(const Identity& caller, const SessionInfo& of, Clock::time_point deadline,
                  Entry& entry, Moving* moving);
  Refused move_mark(const Identity& caller, const SessionInfo& of, const MarkInfo& mark,
                    Entry& entry);
  void leave_marks(const Identity& caller, const std::string& name, const Moving& moving,
                   Moved* sum);
  Result create_from_engine(const Identity& caller, const std::string& name,
                            const std::string& parent, Entry& entry, SessionInfo* info);
  SessionResult look_at(SessionCommand command, Entry& entry);
  SessionResult create(SessionCommand command, const std::string& parent, Entry& entry);
  SessionResult close(SessionCommand command, Entry& entry);
  SessionResult mark(SessionCommand command, Entry& entry);
  SessionResult unmark(SessionCommand command, Entry& entry);
  SessionResult rewind(SessionCommand command, Entry& entry);
  SessionResult rewind_to_mark(const SessionCommand& command, Entry& entry);
  SessionResult rewind_to_token(const SessionCommand& command, Entry& entry);
  SessionResult absorb(const SessionCommand& command, const SessionHead& head);
  // A commit that writes no blobs, of the record that `change` makes of the head's; the result that
  // it returns is that of the command, and nothing is changed. keeps_answer: the text is the same,
  // and so is the recorded answer.
  using Change = std::function<std::optional<SessionResult>(const SessionHead&, HeadRecord*)>;
  SessionResult change_head(const SessionCommand& command, Entry& entry, bool keeps_answer,
                            const Change& change);
  void drop_if_replaced(const SessionCommand& command, Entry& entry);

  // On a thread of this class.
  Refused unusable();
  Refused check_share(const Identity& caller, int64_t more);
  Refused check_share_of_turn(const Identity& caller, const SessionHead& head);
  SessionResult ask(SessionCommand command);
  std::vector<SessionInfo> sessions_of_engine(const Identity& caller);
  bool close_idlest_copy(Clock::time_point since);
  void close_idle_copies();
  void look_in_store(SessionCommand command, SessionResult otherwise);
  void look_in_engine_and_store(SessionCommand command);
  SessionResult answer_from(const SessionCommand& command, const SessionHead& head);
  void fork(SessionCommand command, const SessionResult& original);
  Result fork_of(const SessionCommand& command, SessionCommand* made);

  // On any thread.
  Refused post_create(SessionCommand command);
  Refused post_on_copy(SessionCommand command, bool runs);
  Refused post_described(SessionCommand command);
  using OfCommand = std::function<SessionResult(SessionCommand, Entry&)>;
  // The work on a session that the store has, where there is one.
  OfCommand work_of(SessionCommand::Kind kind);
  // Runs the work on a thread of this class.
  Refused run_counted(const Identity& caller, std::function<void()> work);
  Refused hold_for(SessionCommand command, OfCommand work);
  void describe(const Identity& caller, SessionResult* result);

  // How often a head is read again because the session has changed since.
  static constexpr int kAttempts = 5;

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
