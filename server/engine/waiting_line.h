#pragma once
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/resident_states.h"
#include "server/engine/sequence.h"
#include "server/observe/engine_metrics.h"
#include "server/prefix/prefix_cache.h"
#include "server/request/admission_queue.h"
#include "server/scheduler/admission.h"
#include "server/scheduler/pace.h"
#include "server/scheduler/preemption.h"
#include "server/scheduler/shares.h"
#include "server/session/session_store.h"

namespace recurve {

// What new requests wait for, in addition to those in the line.
struct EngineLoad {
  std::span<const std::unique_ptr<Sequence>> running;
  const Pace& pace;
  const HoldTimeEstimator& holds;
  // Prompt tokens a second of all sequences; 0: unknown. shared: several tenants are active.
  double prompt_rate(bool shared) const;
};

// Which requests may start that were not preempted.
enum class NewRequests {
  kAll,
  kOfOthers,  // those of tenants that have no preempted ones, nor their groups
  kNone,
};

// The requests that have no slot yet, in the order of their ranks: by arrival, corrected by
// priority. Every second turn goes to a prompt that is far shorter than the first one, if there is
// one, so that many long prompts do not block it. Ranks order the requests of one tenant; tenants
// share the slots by weight. Slots of idle sessions are taken for waiting requests, also those of
// sessions whose own requests are further back in the line.
// A request starts with one slot, however many choices it has. The other choices get theirs at the
// end of the prompt. Those that find none are queued again with the same rank and absorb the prompt
// again. So no request holds or reserves a slot while it waits for others.
// A state that grows needs pages too, for the prompt and the first token at least. A request that
// was preempted waits with its state, and continues from it.
// A request whose first token would be too late because of others is refused at once. So is one for
// which an allocation fails; nothing else changes then. Engine thread only.
class WaitingLine {
 public:
  // All references outlive the line. bound: of the time to the first token. A request that has
  // waited for twice as long is dropped. most_tokens: of a state.
  WaitingLine(AdmissionQueue& queue, SessionStore& sessions, PrefixCache& prefixes, StatePool& pool,
              EngineMetrics& metrics, const FirstTokenBound& bound,
              int64_t most_tokens = std::numeric_limits<int64_t>::max())
      : queue_(queue),
        sessions_(sessions),
        prefixes_(prefixes),
        pool_(pool),
        metrics_(metrics),
        bound_(bound),
        most_tokens_(most_tokens),
        residents_(pool) {}

  // Runs session commands; queues the requests that can be served and refuses the others.
  void take_arrivals(const EngineLoad& load, Clock::time_point now);
  // Drops requests that were cancelled, are past their deadline or have waited for too long.
  void drop_unwanted(Clock::time_point now);
  // The next request, in its slot; null if none waits, or no slot or too few pages are available.
  // running: sequences that may need another page soon.
  std::unique_ptr<Sequence> admit_next(Clock::time_point now, int running = 0,
                                       NewRequests starts = NewRequests::kAll);
  // What the request needs that was next when admit_next() found no slot or too few pages, of a
  // model whose states grow; empty: there were enough, or copies under way will free them.
  const std::optional<Need>& shortage() const { return shortage_; }
  // A slot with unset contents for a further choice; may move an idle session out of its slot.
  // Empty if there is none, if the tenant has its maximum, or if a tenant with fewer slots waits.
  std::optional<StateSlot> acquire_slot(const Sequence& sequence, Clock::time_point now);
  // Counts the slots in use; call it before each series of calls to the two functions above.
  void count_slots(std::span<const std::unique_ptr<Sequence>> running);
  void count_slot(const Sequence& sequence);
  // Gives back the slot and the pages of an initial state that is in one. False: there is none.
  bool give_resident_state() { return residents_.give_one(); }
  int resident_states() const { return residents_.slots(); }
  // Queues the choices from `first` on, which found no slot.
  void requeue(const Sequence& sequence, size_t first);
  // Queues a sequence that was preempted. Throws std::bad_alloc, and then has not taken it.
  void requeue(std::unique_ptr<Sequence>& preempted);
  // Preempted sequences that have ended since.
  std::vector<std::unique_ptr<Sequence>> take_ended() { return std::exchange(ended_, {}); }
  // Drops all requests and commands, also those that have just arrived. The queue is closed.
  void drop_all(EndReason reason, Clock::time_point now);

  // Several tenants, or addresses, were active lately: steps should be short.
  bool is_shared(Clock::time_point now) const;

  bool empty() const { return waiting_.empty() && reading_.empty() && parked_commands_.empty(); }
  // The waiting requests, in the order of their ranks.
  std::vector<Waiter> waiters() const;
  // When the first of them is to be dropped.
  std::optional<Clock::time_point> next_deadline() const;
  // Expected wait of a short request that would arrive now.
  double expected_seconds(const EngineLoad& load, Clock::time_point now) const;

 private:
  using Line = std::list<std::unique_ptr<Sequence>>;

  void forget_uses();
  bool check_session(Line& one);
  void resume_parked(const EngineLoad& load, Clock::time_point now);
  bool drop_if_unwanted(std::unique_ptr<Sequence>& waiting, Clock::time_point now);
  bool fetch_prefix(Line& one, const EngineLoad& load, Clock::time_point now);
  void wait_for_disk(Line& one, std::shared_ptr<DiskRead> read, Session* session);
  void refuse(const Request& request, const StreamEnd& ending);

  void run_command(SessionCommand& command, const EngineLoad& load, Clock::time_point now);
  void arrive(Request& request, const EngineLoad& load, Clock::time_point now);
  void arrive(std::unique_ptr<Replay> replay, const EngineLoad& load, Clock::time_point now);
  void read_begin(Line& one);
  void resume_replay(Line& one, Clock::time_point now);
  // has_prefix: the prefix has been looked for on disk already.
  void queue_or_refuse(Line& one, bool has_prefix, const EngineLoad& load, Clock::time_point now);
  StreamEnd refusal(const Sequence& waiting) const;
  StreamEnd refuse_growth(const Sequence& waiting);
  double wait_of(const Waiter& waiter, const EngineLoad& load, Clock::time_point now) const;
  StreamEnd overload(Sequence& waiting, const EngineLoad& load, Clock::time_point now);
  void line_up(Line& one);
  void insert(Line& one);
  void reserve_turns();
  int64_t first_tokens_of(const Sequence& sequence, int64_t position) const;
  int64_t most_tokens_of(const Identity& who) const;
  int64_t most_pages_of(const Sequence& sequence) const;
  bool has_pages_left(const Sequence& sequence);
  const Sequence* next_to_keep(const SlotUse& use);
  int32_t pages_for(const Sequence& waiting, int running);
  bool free_slot_for(const Sequence& waiting);
  bool free_pages_for(const Sequence& waiting, int running);
  Waiter waiter_of(const Sequence& waiting) const;
  int most_slots_of(const Identity& who) const { return most_slots(who, pool_.slots()); }
  Line::iterator next_in_turn(Clock::time_point now, NewRequests starts);
  static constexpr size_t kMostUses = 256;  // then idle tenants' entries are dropped
  TenantUse& use_of(TenantId tenant);
  std::optional<Clock::time_point> patience_ends(const Sequence& waiting) const;
  void drop(std::unique_ptr<Sequence>& waiting, EndReason reason, Clock::time_point now);
  void fit_default(Sequence& waiting) const;
  std::string too_long_for(const Sequence& waiting) const;
  void drop_arrivals(EndReason reason);
  bool free_one_slot();
  void lack(const Sequence& waiting, int32_t pages);
  PrefixCache::Start prefix_of(const Sequence& waiting);
  void start(Sequence& sequence, Clock::time_point now);
  void resume(Sequence& sequence);
  void start_replay(Sequence& sequence, Clock::time_point now);
  StateSlot slot_with(StateImage state, int64_t tokens);
  StateSlot slot_with(const InitialState& state);
  bool has_pages_alone(const Sequence& sequence);
  void reserve_pages(const Sequence& sequence);

  AdmissionQueue& queue_;
  SessionStore& sessions_;
  PrefixCache& prefixes_;
  StatePool& pool_;
  EngineMetrics& metrics_;
  const FirstTokenBound bound_;
  BurstWatch burst_;
  const int64_t most_tokens_;
  AdmissionQueue::Arrivals arrivals_;  // being processed
  Line waiting_;                       // by rank
  std::vector<std::unique_ptr<Sequence>> ended_;
  std::optional<Need> shortage_;
  Line reading_;  // requests that wait for a disk, see Sequence::disk_read
  ResidentStates residents_;
  std::vector<SessionCommand> parked_commands_;
  // Scratch of next_in_turn(), with capacity for the whole line: the tenant's requests and where
  // they are in the line.
  std::vector<Waiter> in_turn_;
  std::vector<Line::iterator> in_turn_at_;
  std::vector<TenantId> preempted_groups_;  // those with preempted requests in the line
  std::vector<TenantUse> uses_;  // of all tenants in the line and in slots, and of recent ones
  // Of the sequences that run and are not preempted any more: all that they may come to need.
  struct Kept {
    int slots = 0;
    int64_t pages = 0;
  };
  Kept kept_;
  uint64_t turns_ = 0;  // of tenants
  bool turn_of_shortest_ = false;
};

}  // namespace recurve
