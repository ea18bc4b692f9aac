#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/request/request.h"
#include "server/request/session_command.h"
#include "server/request/session_names.h"
#include "server/session/session.h"
#include "server/session/state_cache.h"
#include "server/session/stored_model.h"
#include "server/session/stored_pages.h"
#include "server/storage/archive.h"

namespace recurve {

struct SessionLimits {
  int64_t host_bytes = 0;          // for sessions and marks, all that they take outside slots
  double default_ttl_seconds = 0;  // 0: sessions stay until they are closed
  // Where sessions are kept, and move to where host memory is short; null: nowhere. Outlives them.
  Archive* archive = nullptr;
  StateHeader identity = {};  // of their states: model, weights and chunk
  std::string model_name = {};
  // Of the sessions of all models; null: there is one model. Outlives them.
  SessionNames* names = nullptr;
  std::vector<InitialStatePtr> initial_states = {};  // that the server has
  std::vector<BoundAdapterPtr> adapters = {};        // the same
  // For durable sessions, which reserve what they may come to take of it, and for states that move.
  int64_t disk_bytes = 0;
  // Called on the engine's thread where a session is closed for having been idle; may only post.
  std::function<void(std::string_view tenant, std::string_view name)> on_expired = {};
  // Called by restore() for each other model that sessions of the folder are of; may only post.
  std::function<void(const StoredModel& model, int sessions)> on_other_model = {};
  // Called on the engine's thread where a session's state is found to be damaged; may only post.
  using OnLost =
      std::function<void(std::string_view tenant, std::string_view name, const std::string& why)>;
  OnLost on_state_lost = {};
  OnLost on_tokens_lost = {};  // the same, of the tokens that it could return to
};

// The shares of all sessions.
struct SessionTotals {
  int residents[kResidencies] = {};
  int in_slot_alone = 0, busy = 0, durable = 0, internal = 0;
  int64_t entries = 0, reserved = 0, disk = 0, small = 0;
  int64_t held = 0, movable = 0, moved = 0;

  void add(const SessionShare& share, int times) {
    residents[static_cast<size_t>(share.residency)] += times * share.sessions;
    in_slot_alone += times * share.in_slot_alone;
    busy += times * share.busy;
    durable += times * share.durable;
    internal += times * share.internal;
    entries += times * share.entries;
    reserved += times * share.reserved;
    disk += times * share.disk;
    small += times * share.small;
    held += times * share.held;
    movable += times * share.movable;
    moved += times * share.moved;
  }
  int in(Tier tier) const {
    int sum = 0;
    for (size_t r = 0; r < kResidencies; ++r) {
      if (tier_of(static_cast<Residency>(r)) == tier) sum += residents[r];
    }
    return sum;
  }
};

// Sessions by tenant and name. Belongs to the engine's thread.
//
// Each session and each mark of a state reserves the host memory of one state, whether it uses it
// now or not, and all else that it may come to take; of states that grow, of as many tokens as it
// has absorbed, or may have after the request that is queued or running on it. So an idle session
// can always leave its slot, and running out of memory is an answer to the one who opens a session
// too many, never to a request on an old one. Where the system gives less than was reserved,
// std::bad_alloc leaves all as it was.
//
// States are on their way, to host memory or to a slot, while all else goes on: see StatePool. So
// they are to the disk and back. A session whose state is on the disk reserves no host memory for
// it: where there is none left, those whose states are on the disk too leave it, and others' are
// written to it, those first that were idle longest. All that is planned before it is taken: a
// session is refused if another one could not come back for it, be that for want of memory or of
// the disk, of which durable sessions have what they reserve.
//
// Of a durable session each change is committed before it is acknowledged, and before it can be
// seen: until then the session is busy, and if it fails it is as it was.
class SessionStore {
 public:
  struct Counts {
    int total = 0, in_slot = 0, in_host = 0, on_disk = 0, empty = 0;
    int internal = 0;                               // of all, those with reserved names
    int64_t host_bytes = 0;                         // of images, in use, not reserved
    int64_t to_slot = 0, to_host = 0, to_disk = 0;  // states that have come there, since the start
  };

  // vocab: ids that sessions may see are below it. Cache and pool outlive the store.
  SessionStore(StateCache& cache, StatePool& pool, const SessionLimits& limits, int32_t vocab);
  ~SessionStore();

  // What a session reserves, of states that grow before its first token: its state and all that
  // maps and heap take for it, but for names of more than 15 characters: its own and its parent's.
  // A mark takes somewhat less, and reserves the same.
  static int64_t bytes_each(const StateLayout& layout, int32_t vocab);

  // What the states of sessions must be of.
  const StateHeader& wanted() const { return wanted_; }

  struct Restored {
    int unknown = 0;      // of which nothing can be made: they are left where they are
    int other_model = 0;  // which can be looked at and closed
  };
  // The sessions that the archive has, before any other is there.
  Restored restore(Clock::time_point now);

  // Carries out what the client asked for. kLater: command.done has been taken, and is called once
  // it is on the disk; kWait: there is no room yet, but some is being made.
  SessionResult run(const SessionCommand& command, Clock::time_point now);

  // Null if the tenant has none of that name.
  Session* find(const std::string& name, TenantId tenant = kAnyone.tenant);

  // Why a request cannot go on with the session: its states are of another model, or changes of it
  // or its state may be lost. Empty: it can, as far as is known.
  std::optional<SessionResult> unusable(const Session& session) const;
  // The same of the tokens that follow: its adapter is missing.
  std::optional<SessionResult> without_adapter(const Session& session) const;

  // A request waits for its turn on the session, or no longer does.
  void set_busy(Session& session, bool busy);
  // A request that is about to wait for its turn may bring the session's state to so many tokens,
  // for which memory and disk are reserved until it has ended. Otherwise why there is none, and
  // nothing is changed.
  std::string plan_growth(Session& session, const Identity& caller, int64_t tokens);
  // The session's state, in a slot, for a request to run on once the slot is ready. The
  // session must be in its slot, or a slot and the pages of its state must be free. begin: the
  // state of a session that has absorbed nothing, in place of that, with begin_tokens; null: that.
  StateSlot check_out(Session& session, StateImage begin = nullptr, int64_t begin_tokens = 0);
  // Takes the state back, with what has become of it: in the slot, or empty and in the image.
  void check_in(Session& session, std::optional<StateSlot> slot, Snapshot at,
                Clock::time_point now);

  // A request on a durable session has ended: its answer is committed, and done() is called with
  // what it is kept as, or a sentence that says why it is taken back.
  using Kept = std::function<void(std::optional<CommitInfo> commit, const std::string& error)>;
  void commit_turn(Session& session, std::optional<StateSlot> slot, Snapshot at, StateAnswer answer,
                   std::vector<int32_t> answer_ids, Kept done);
  // Or has broken off: the session is as it was before it.
  void roll_back(Session& session, Clock::time_point now);

  // What a command of Progress::kAbsorbing has begun; the session is busy until one of the other
  // two is called.
  std::unique_ptr<Replay> take_replay() { return std::move(replay_); }
  // Reads the state that it begins with, where that is to be read.
  void read(const Snapshot& begin, StateCache::OnRead done);
  // The state of its end, as in check_in().
  void end_replay(Replay& replay, std::optional<StateSlot> slot, Snapshot at,
                  Clock::time_point now);
  void cancel_replay(Replay& replay, SessionResult why);

  // Sends for the state of a session that is on the disk alone, which is busy until it is there.
  // kThere: it need not be. kNone: there is no room for it.
  enum class Room { kThere, kComing, kNone };
  using OnBrought = std::function<void(const Archive::Loaded&)>;
  Room bring(Session& session, OnBrought done);

  // Does what has become possible since: what disks and copies have done. False: nothing has.
  bool advance();
  // Whether a session has become free since, which others may have waited for.
  bool has_ended() const { return has_ended_; }
  // Hands over what was asked to be written since, so that it shares its syncs: to be called before
  // anybody waits. advance() does so too.
  void send_writes();
  // Whether disks or copies for them are under way.
  bool working() const {
    return !saving_.empty() || !exporting_.empty() || (archive_ != nullptr && archive_->working());
  }
  // Returns once nothing is.
  void finish_work();
  Archive* archive() { return archive_; }
  // Bytes of states that others may have on the disk: of what sessions have neither reserved nor
  // come to use of it, with some left over for what these do next, a half; and of that a half, for
  // the room of what is about to go.
  int64_t spare_disk_bytes() const;
  std::optional<CommitInfo> last_commit(const Session& session) const;

  // Moves one session's state from its slot, which is free then, to host memory: that of the one
  // that has been idle longest; only then those of sessions whose request still waits for its turn.
  // False if no session is in a slot but `except` and those that a request is running on.
  bool evict_one(const Session* except = nullptr);

  // Closes the sessions that have been idle for too long; of very many, some, and next_expiry() is
  // past then.
  void expire(Clock::time_point now);
  // When expire() will next have something to do; empty: never.
  std::optional<Clock::time_point> next_expiry() const;

  Counts counts() const;

 private:
  // Those that may expire, by when they do.
  using ByExpiry = std::set<std::pair<Clock::time_point, Session*>>;
  // All sessions, by whether and when their states may leave host memory: those first that may at
  // once, then those that are to be written before.
  enum Leave { kAtOnce, kOnceWritten, kNot };
  using ByUse = std::set<std::tuple<int, Clock::time_point, Session*>>;
  struct Key {
    TenantId tenant;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };

  // What is to become of a durable session once it is committed.
  struct Proposal {
    Snapshot at;
    std::map<std::string, Snapshot> marks;
    StateAnswer answer = {};
    std::vector<int32_t> answer_ids = {};
    StoredPtr continues = {};  // see StateStore::NewState
    bool writes = false;       // at.image is to be written
    bool changes = false;      // the epoch, and what the session is at
  };
  using Committed = std::function<void(const std::string& error)>;
  // What is written once its state has been copied.
  struct Saving {
    Copier::Ticket ticket;
    Archive::Write write;
  };

  // An answer with a state that is still on its way to host memory.
  struct Exporting {
    Copier::Ticket ticket;
    SessionResult result;
    std::function<void(SessionResult)> done;
  };

  bool has_its_sessions(const SessionCommand& command) const;
  std::string no_share(const SessionCommand& command) const;
  SessionResult open(const SessionCommand& command, Clock::time_point now);
  SessionResult fork(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult mark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult unmark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult rewind(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult rewind_to(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult accept(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult go_back(Session& session, Snapshot back, const SessionCommand& command,
                        Clock::time_point now);
  SessionResult close(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult list(const SessionCommand& command, Clock::time_point now) const;
  SessionResult export_state(Session& session, const SessionCommand& command,
                             Clock::time_point now);
  SessionResult export_mark(Session& session, const SessionCommand& command, Clock::time_point now);
  SessionResult exported(const Session& session, const Snapshot& at, const SessionCommand& command,
                         Clock::time_point now);

  // slot: with the state, where it has one already.
  SessionResult insert(const SessionCommand& command, Key key, const Session* forked, Snapshot at,
                       std::optional<StateSlot> slot, Durability durability, Clock::time_point now);
  SessionNames::Claim claim(const Key& key) const;
  Session& put(Key key, const std::string& parent, Snapshot at, double ttl_seconds,
               Clock::time_point now);
  static std::string key_of(const Session& session);
  SessionResult refuse_durable(Durability durability, const Snapshot& at) const;
  void commit(Session& session, Proposal proposal, Committed done);
  SessionResult commit_then_tell(Session& session, Proposal proposal, const SessionCommand& command,
                                 Clock::time_point now);
  void commit_answer(Session& session, std::optional<StateSlot> slot, StoredPtr continues,
                     Proposal proposal, Kept done);
  void let_be(Session& session);
  SessionResult remove_then_tell(Session& session, const SessionCommand& command,
                                 Clock::time_point now);
  std::optional<SessionResult> bring_for_command(Session& session);
  std::optional<SessionResult> refuse_unusable(const Session& session,
                                               SessionCommand::Kind kind) const;
  const std::pair<const std::string, Snapshot>* last_whole_mark(const Session& session) const;
  int64_t position_still_there(const Session& session) const;
  StateStore::Change change_of(const Session& session, Proposal* proposal);
  std::optional<StateStore::NewTokens> new_tokens(Snapshot* at);
  StateHeader header_of(const Session& session, const Snapshot& at) const;
  bool restore_one(const StateStore::Record& record, Clock::time_point now);
  StoredModel model_of(const StateStore::Record& record, const std::string& id);
  void check_model(Session& session, StoredModel model);
  int settle_models();
  void write_owner();
  void write(StateStore::Change change, Archive::Committed done);
  // A session that comes back waits for others to end their requests, and may take the last place
  // on the disk for one that goes there.
  enum class For { kNew, kReturn };
  Room make_room(int64_t bytes, For purpose);
  void update(Session& session, Residency residency);
  void update(Session& session) { update(session, session.residency); }
  void sort(Session& session);
  SessionShare share_of(const Session& session) const;
  int64_t disk_places(int64_t more_reserved) const;
  // Of a state of so many tokens.
  int64_t state_memory(int64_t tokens) const {
    return state_memory_ + page_memory_ * StateLayout::pages(page_memory_ > 0 ? tokens : 0);
  }
  // stored: pages of it that are counted in stored_pages_. log: tokens that it stores.
  int64_t disk_for(Durability durability, int64_t tokens, int64_t stored, int64_t log) const {
    if (durability == Durability::kNone) return 0;
    const int64_t pages = disk_page_ > 0 ? StateLayout::pages(tokens) - stored : 0;
    return disk_each_ + disk_page_ * std::max<int64_t>(pages, 0) + disk_for_log(log);
  }
  int64_t disk_for_log(int64_t log) const;
  int64_t memory_for_log(int64_t log) const;
  // That of a new session with this state.
  int64_t disk_for(Durability durability, const Snapshot& at) const;
  // Host memory that sessions reserve, with what is known of their page groups.
  int64_t host_reserved() const { return totals_.reserved + stored_pages_.memory(); }
  // What durable sessions may come to take on the disk.
  int64_t disk_reserved() const { return totals_.disk + stored_pages_.bytes(); }
  void count_pages(Session& session);
  void forget_pages(Session& session);
  static int64_t final_position(const Session& session) {
    return std::max(session.at.position, session.planned_position);
  }
  int64_t states_moved() const { return (totals_.moved + state_memory_ - 1) / state_memory_; }
  int64_t planned(int64_t small, int64_t states, int64_t more_on_disk, int64_t movable = 0) const;
  void drop(Session& session);
  void put_in_slot(Session& session, StateSlot slot);
  void rest_outside_slot(Session& session);
  void leave_slot(Session& session);
  void spill(Session& session);
  void load_tokens(Session& session, std::function<void()> done, OnBrought failed);
  bool has_disk(For purpose, const Session& leaves) const;
  Leave leave_of(const Session& session) const;
  StateImage save(const Session& session, const StateSlot& slot, int64_t position) {
    return cache_.save(StateCache::Owner::kSessions, slot, position, session.base.lock(),
                       session.base_tokens);
  }
  static void set_base(Session& session, const StateImage& image, int64_t tokens) {
    session.base = image;
    session.base_tokens = tokens;
  }
  StateImage save_new_pages(const Session& session, const StateSlot& slot, int64_t position,
                            const StoredPtr& continues);
  const StateImage& image_of(Session& session);
  Snapshot snapshot(Session& session);
  SessionInfo describe(const Session& session, Clock::time_point now) const;
  SessionResult described(const Session& session, Clock::time_point now) const;
  void touch(Session& session, Clock::time_point now);
  int64_t reserved_for(std::string_view name, int64_t state, int64_t log) const;
  std::string over_share(const Identity& caller, int64_t more_host, int64_t more_disk) const;
  int64_t reserved_by(const Session& session) const;
  // state: bytes that it has here; log: tokens that it stores; more_on_disk: bytes that it reserves
  // there.
  std::optional<SessionResult> no_room(std::string_view name, std::string_view parent,
                                       int64_t state, int64_t log, int64_t more_on_disk);
  template <typename Why>
  std::optional<SessionResult> no_room_of(int64_t wanted, bool fits, const Why& why);
  std::optional<SessionResult> no_room_to_empty(const Session& session);
  void erase(Session& session);
  std::optional<StateSlot> take_slot(Session& session);
  // Tells the cache what sessions reserve. While a session is in a slot alone, that is the memory
  // of an image that went: another that leaves its slot takes it as it is. So does one that comes
  // from the disk, where that memory is not reserved.
  void reserve_memory() noexcept {
    cache_.reserve(host_reserved());
    const bool comes =
        totals_.in(Tier::kDisk) > 0 && host_reserved() + state_memory_ <= limits_.host_bytes;
    cache_.keep_spare(totals_.in_slot_alone > 0 || comes);
  }

  StateCache& cache_;
  StatePool& pool_;
  const SessionLimits limits_;
  const StateHeader wanted_;
  const int64_t bytes_each_;
  const int64_t state_memory_;  // of it, what goes where the state is on the disk alone
  const int64_t page_memory_;   // for each page more; 0: states do not grow
  // On the disk, of a durable session or a state that has moved, at most, and for each page more:
  // while a state is replaced both are there, and a segment is compacted before half of it is gone.
  // Pages that durable sessions have written are counted apart.
  const int64_t disk_each_, disk_page_;
  Archive* const archive_;
  std::unique_ptr<Replay> replay_;  // of the command that runs
  std::map<Key, Session> sessions_;
  std::vector<Session*> in_slots_;  // those with a slot
  ByExpiry by_expiry_;
  ByUse by_use_;
  std::vector<Saving> saving_;
  std::vector<Exporting> exporting_;
  const StoredModel model_;  // of this server's states
  // Of the sessions that restore() has found, by ID, and how many there are of each.
  struct FoundModel {
    StoredModel model;
    std::shared_ptr<const std::string> difference = {};
    int sessions = 0;
  };
  std::map<std::string, FoundModel> found_models_;
  uint64_t owner_epoch_ = 0;
  bool owner_written_ = true;
  bool spilling_ = false;  // one state at a time
  SessionTotals totals_;
  StoredPages stored_pages_;
  int64_t largest_state_;  // bytes of host memory, of those that there have been
  int64_t to_slot_ = 0, to_host_ = 0, to_disk_ = 0;
  bool has_ended_ = false;  // one that was busy is not any more, since advance() was called last
};

}  // namespace recurve
