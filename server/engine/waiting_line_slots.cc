// WaitingLine: slots and pages, which tenants share by weight.
#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "server/engine/waiting_line.h"
#include "server/session/state_transfer.h"

namespace recurve {
namespace {

// The one that a request in line starts from itself, and not its session has; null: none.
const InitialState* initial_state_of(const Sequence& waiting) {
  const bool begins = waiting.session == nullptr && !waiting.is_preempted();
  return begins ? waiting.request.binding.initial_state.get() : nullptr;
}

}  // namespace

TenantUse& WaitingLine::use_of(TenantId tenant) {
  const auto found = std::ranges::find(uses_, tenant, &TenantUse::tenant);
  return found != uses_.end() ? *found : uses_.emplace_back(TenantUse{.tenant = tenant});
}

// Drops entries of tenants that neither run nor wait. Without keys, a tenant is an address, and
// their number is not bounded.
void WaitingLine::forget_uses() {
  std::erase_if(uses_, [this](const TenantUse& use) {
    return use.slots == 0 && std::ranges::none_of(waiting_, [&](const auto& waiting) {
             return waiting->request.caller.share() == use.tenant;
           });
  });
}

void WaitingLine::count_slots(std::span<const std::unique_ptr<Sequence>> running) {
  for (TenantUse& use : uses_) use.slots = use.pages = 0;
  kept_ = {};
  for (const auto& sequence : running) count_slot(*sequence);
}

void WaitingLine::count_slot(const Sequence& sequence) {
  TenantUse& use = use_of(sequence.request.caller.share());
  ++use.slots;
  use.pages += most_pages_of(sequence);
  if (!sequence.keeps_pages()) return;
  ++kept_.slots;
  kept_.pages += StateLayout::pages(sequence.final_position());
}

// Of the waiting requests that would not be preempted any more the one that may start, if half of
// the slots and of the pages remain for the others, or if no such request runs; null: none may. So
// a tenant that has little need not wait until one of these ends. In the order of their last
// preemption, as small ones would otherwise keep a large one waiting.
const Sequence* WaitingLine::next_to_keep(const SlotUse& use) {
  const Sequence* first = nullptr;
  for (const auto& waiting : waiting_) {
    if (!waiting->keeps_pages() || !has_pages_left(*waiting)) continue;
    if (first != nullptr && first->preemption.last <= waiting->preemption.last) continue;
    if (use.may_have_more(*use.of(waiting->request.caller.share()))) first = waiting.get();
  }
  if (first == nullptr || kept_.slots == 0) return first;
  const int64_t pages = kept_.pages + StateLayout::pages(first->final_position());
  const bool fits = 2 * (kept_.slots + 1) <= pool_.slots() && 2 * pages <= pool_.pages();
  return fits ? first : nullptr;
}

// Tokens that one state of the caller may have.
int64_t WaitingLine::most_tokens_of(const Identity& who) const {
  const StateLayout& layout = pool_.layout();
  if (!layout.grows() || who.limits.page_bytes == TenantLimits::kNoBytes) return most_tokens_;
  const int64_t pages = who.limits.page_bytes / static_cast<int64_t>(layout.page_bytes());
  return std::min(most_tokens_, pages * kPageTokens);
}

// Pages that it may come to need; of a streamed prompt, which may become longer, all that it may
// have.
int64_t WaitingLine::most_pages_of(const Sequence& sequence) const {
  if (!pool_.layout().grows()) return 0;
  const int64_t most = most_tokens_of(sequence.request.caller);
  if (sequence.request.more_prompt != nullptr) return StateLayout::pages(most);
  const bool waits = sequence.started == Clock::time_point{} && !sequence.replay;
  const int64_t before = waits ? sequence.begin_position() : 0;
  return StateLayout::pages(std::min(before + sequence.final_position(), most));
}

// Whether its tenant's quota of pages has what it may come to need, in addition to what runs.
bool WaitingLine::has_pages_left(const Sequence& sequence) {
  const Identity& caller = sequence.request.caller;
  if (!pool_.layout().grows() || caller.limits.page_bytes == TenantLimits::kNoBytes) return true;
  const auto each = static_cast<int64_t>(pool_.layout().page_bytes());
  return use_of(caller.share()).pages + most_pages_of(sequence) <= caller.limits.page_bytes / each;
}

bool WaitingLine::is_shared(Clock::time_point now) const {
  return several_are_active(uses_, seconds_of(now));
}

// Makes sure that a slot is free, if need be by moving an idle session out of its slot. False if
// neither exists.
bool WaitingLine::free_one_slot() {
  return pool_.free_slots() > 0 || residents_.give_one() || sessions_.evict_one();
}

// The same for a request, unless it has one.
bool WaitingLine::free_slot_for(const Sequence& waiting) {
  if (waiting.has_slot() || free_one_slot()) return true;
  if (pool_.layout().grows()) lack(waiting, 0);
  return false;
}

void WaitingLine::lack(const Sequence& waiting, int32_t pages) {
  const Identity& caller = waiting.request.caller;
  shortage_ = {.tenant = caller.share(), .weight = caller.limits.weight, .pages = pages};
}

// Tokens whose pages a sequence has when it starts: the prompt and the first token; all that it may
// come to need, if it may not be preempted again.
int64_t WaitingLine::first_tokens_of(const Sequence& sequence, int64_t position) const {
  if (sequence.keeps_pages()) return sequence.final_position();
  return std::min(position + sequence.unabsorbed() + 1, most_tokens_);
}

// Of the session's slot, or of an empty one; a tenant that has slots leaves one for each sequence
// that runs.
int32_t WaitingLine::pages_for(const Sequence& waiting, int running) {
  if (!pool_.layout().grows()) return 0;
  const bool begins = waiting.begin() != nullptr && !waiting.is_preempted() && !waiting.replay;
  const int64_t position = begins ? waiting.begin_position() : waiting.position;
  const int64_t tokens = first_tokens_of(waiting, position);
  const int32_t least = waiting.has_slot()
                            ? pool_.missing_pages(*waiting.session->slot, position, tokens)
                            : static_cast<int32_t>(StateLayout::pages(tokens)) -
                                  residents_.shared_pages(initial_state_of(waiting));
  const bool has_slots = use_of(waiting.request.caller.share()).slots > 0;
  return has_slots ? std::min(least + running, std::max(least, pool_.pages())) : least;
}

// Makes sure that the request has its pages, if need be by moving idle sessions out of their slots;
// the initial state that it shares pages with last.
bool WaitingLine::free_pages_for(const Sequence& waiting, int running) {
  int32_t wanted = pages_for(waiting, running);
  while (wanted > 0 && pool_.free_pages() < wanted) {
    if (pool_.free_pages() + pool_.held_pages() >= wanted) return false;
    if (residents_.give_one(initial_state_of(waiting))) continue;
    if (sessions_.evict_one(waiting.replay ? nullptr : waiting.session)) continue;
    if (residents_.give_one()) {
      wanted = pages_for(waiting, running);
      continue;
    }
    lack(waiting, wanted);
    return false;
  }
  return true;
}

std::optional<StateSlot> WaitingLine::acquire_slot(const Sequence& sequence,
                                                   Clock::time_point now) {
  const Identity& caller = sequence.request.caller;
  TenantUse& own = use_of(caller.share());
  const SlotUse use(uses_, pool_.slots(), seconds_of(now));
  if (!use.may_have_more(own) || !has_pages_left(sequence)) return std::nullopt;
  const auto has_fewer = [&](const TenantUse& other) {
    const auto its = use.rank(other), mine = use.rank(own);
    return same_group(other.tenant, caller.share()) ? its.own < mine.own
                                                    : its.of_group < mine.of_group;
  };
  const auto waits_with_less = [&](const std::unique_ptr<Sequence>& other) {
    const TenantId who = other->request.caller.share();
    const TenantUse* its = use.of(who);
    return who != caller.share() && use.may_have_more(*its) && has_fewer(*its);
  };
  if (std::ranges::any_of(waiting_, waits_with_less)) return std::nullopt;
  if (!free_one_slot()) return std::nullopt;
  count_slot(sequence);
  return pool_.acquire_unset();
}

// The free slot that there is, with a state of so many tokens.
StateSlot WaitingLine::slot_with(StateImage state, int64_t tokens) {
  StateSlot slot = std::move(*pool_.acquire_unset());
  CHECK(pool_.reserve(slot, tokens));
  pool_.load(std::move(state), slot);
  return slot;
}

// The same with the state that a request starts from; where states grow, it shares the pages of
// the one that is in a slot.
StateSlot WaitingLine::slot_with(const InitialState& state) {
  const Snapshot& at = snapshot_of(state);
  const StateSlot* const resident = residents_.find(&state);
  if (resident == nullptr) return slot_with(at.image, at.position);
  StateSlot slot = std::move(*pool_.acquire_unset());
  CHECK(pool_.share_pages(*resident, slot, at.position));
  pool_.copy(*resident, slot, at.position);
  return slot;
}

// Whether there are pages for a request that shares none.
bool WaitingLine::has_pages_alone(const Sequence& sequence) {
  return !pool_.layout().grows() || pool_.free_pages() >= StateLayout::pages(first_tokens_of(
                                                              sequence, sequence.begin_position()));
}

// Those that free_pages_for() has found.
void WaitingLine::reserve_pages(const Sequence& sequence) {
  CHECK(pool_.reserve(sequence.slot, first_tokens_of(sequence, sequence.position)));
}

}  // namespace recurve
