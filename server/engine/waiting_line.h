#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "server/engine/sequence.h"
#include "server/observe/engine_metrics.h"
#include "server/prefix/prefix_cache.h"
#include "server/request/admission_queue.h"
#include "server/scheduler/admission.h"
#include "server/scheduler/pace.h"
#include "server/scheduler/shares.h"
#include "server/session/session_store.h"

namespace recurve {

// What new requests wait for, in addition to those in the line.
struct EngineLoad {
  std::span<const std::unique_ptr<Sequence>> running;
  const Pace& pace;
  const HoldTimeEstimator& holds;
  // Prompt tokens a second, of all together; 0: not known. shared: by several tenants.
  double prompt_rate(bool shared) const;
};

// The requests that have arrived and have no slot yet. They leave by their places, which is the
// order they came in but for priority; only that every second turn goes to a far shorter prompt
// than the first one's, so that a flood of long ones does not keep it out. Tenants share the slots
// by their weights: places are among a tenant's own. A request need not wait for the slots of idle
// sessions, nor for those of sessions that stand behind it in the line.
//
// One slot is enough for a request to leave, however many choices it has: the others take theirs
// where its prompt ends. Those that find none stand in the line again, in the same place, and
// absorb the prompt anew. So no request holds a slot, or reserves one, to wait for others.
//
// A request whose first token would come too late because of others is refused at once; so is one
// that there is no memory for, and everything else stays as it was. Belongs to the engine's thread.
class WaitingLine {
 public:
  // All references outlive the line. most_seconds: to a first token, at most; 0: however long. A
  // request that has waited twice as long in spite of that is given up.
  WaitingLine(AdmissionQueue& queue, SessionStore& sessions, PrefixCache& prefixes, StatePool& pool,
              EngineMetrics& metrics, double most_seconds)
      : queue_(queue),
        sessions_(sessions),
        prefixes_(prefixes),
        pool_(pool),
        metrics_(metrics),
        most_seconds_(most_seconds) {}

  // Answers what is about sessions; lines up requests that can be served, refuses the others.
  void take_arrivals(const EngineLoad& load, Clock::time_point now);
  // Lets go of those that were cancelled, have run out of time or have waited for too long.
  void drop_unwanted(Clock::time_point now);
  // The next request, in its slot; null if none waits or there is no room for it.
  std::unique_ptr<Sequence> admit_next(Clock::time_point now);
  // A slot for a further choice, whose state is to be copied into it, after an idle session has
  // left its own if it must; empty: there is none.
  // Not where the tenant has what it may have, or others wait that have less.
  std::optional<StateSlot> acquire_slot(const Identity& caller, Clock::time_point now);
  // Which slots are in use: once before each round of the two above.
  void count_slots(std::span<const std::unique_ptr<Sequence>> running);
  void count_slot(TenantId tenant) { ++use_of(tenant).slots; }
  // The choices from `first` on, who found no slot, wait.
  void requeue(const Sequence& sequence, size_t first);
  // Lets go of all of them, and of what has arrived and was not looked at. The queue is closed.
  void drop_all(EndReason reason, Clock::time_point now);

  // Whether several tenants, or addresses, have asked lately: then steps are kept short.
  bool is_shared(Clock::time_point now) const;

  bool empty() const { return waiting_.empty() && parked_.empty() && parked_commands_.empty(); }
  // Those in it, by their places.
  std::vector<Waiter> waiters() const;
  // When the first of them will have to be let go.
  std::optional<Clock::time_point> next_deadline() const;
  // Seconds that a short request would wait that came now.
  double expected_seconds(const EngineLoad& load, Clock::time_point now) const;

 private:
  using Line = std::list<std::unique_ptr<Sequence>>;
  // A request whose session's state is on the disk, or that of what its prompt begins with.
  struct Parked {
    Request request = {};
    bool loading = false;  // else: there is no room for it yet
    std::string error = {};
    EndReason reason = EndReason::kDone;
    bool has_prefix = false;     // it is what its prompt begins with
    Session* session = nullptr;  // then: marked busy for this request; null: none
  };

  void forget_uses();
  bool check_session(Request& request, Session& session);
  void resume_parked(const EngineLoad& load, Clock::time_point now);
  void drop_unwanted_parked(Clock::time_point now);
  void drop_parked(EndReason reason);
  bool fetch_prefix(Request& request, const Sequence& waiting);
  void release_parked(Parked& parked);

  void run_command(SessionCommand& command, Clock::time_point now);
  // has_prefix: what the prompt begins with has come from the disk, if it was there.
  void arrive(Request& request, const EngineLoad& load, Clock::time_point now,
              bool has_prefix = false);
  StreamEnd refusal(const Request& request, const Sequence& waiting) const;
  double wait_of(const Waiter& waiter, const EngineLoad& load, Clock::time_point now) const;
  StreamEnd overload(const Sequence& waiting, const EngineLoad& load, Clock::time_point now) const;
  void line_up(Line& one);
  Waiter waiter_of(const Sequence& waiting) const;
  int most_slots_of(const Identity& who) const { return most_slots(who, pool_.slots()); }
  Line::iterator next_in_turn(Clock::time_point now);
  static constexpr size_t kMostUses = 256;  // then those of others are forgotten
  TenantUse& use_of(TenantId tenant);
  std::optional<Clock::time_point> patience_ends(const Sequence& waiting) const;
  void drop(const Sequence& waiting, EndReason reason, Clock::time_point now);
  void drop_arrivals(EndReason reason);
  bool free_one_slot();
  PrefixCache::Start prefix_of(const Sequence& waiting);
  void start(Sequence& sequence, Clock::time_point now);

  AdmissionQueue& queue_;
  SessionStore& sessions_;
  PrefixCache& prefixes_;
  StatePool& pool_;
  EngineMetrics& metrics_;
  const double most_seconds_;
  AdmissionQueue::Arrivals arrivals_;  // being looked at
  Line waiting_;                       // by their places
  std::vector<std::shared_ptr<Parked>> parked_;
  std::vector<SessionCommand> parked_commands_;
  // Of next_in_turn(), with room for all of the line: who may be next, and where it stands.
  std::vector<Waiter> in_turn_;
  std::vector<Line::iterator> in_turn_at_;
  std::vector<TenantUse> uses_;  // of all tenants in the line and in slots, and of many others
  uint64_t turns_ = 0;           // of tenants
  bool turn_of_shortest_ = false;
};

}  // namespace recurve
