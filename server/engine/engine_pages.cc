// Engine: pages for sequences that run and for requests that start, and preemption.
#include <algorithm>
#include <new>

#include "server/engine/engine.h"

namespace recurve {

// Free pages, and those that will be once copies and steps under way are done.
int32_t Engine::pages_to_come() {
  int32_t pages = pool_.free_pages() + pool_.held_pages();
  for (const auto& sequence : running_) {
    if (sequence->preemption.pending) pages += pool_.pages_of(sequence->slot);
  }
  return pages;
}

// slots: each has one page, for its slot.
std::vector<PageHolder> Engine::page_holders(bool slots) const {
  std::vector<PageHolder> holders;
  for (const auto& sequence : running_) {
    const Identity& caller = sequence->request.caller;
    const int32_t pages = pool_.pages_of(sequence->slot);
    // A streamed prompt may have become longer since it got all pages.
    const bool has_all =
        sequence->keeps_pages() && pages >= StateLayout::pages(sequence->final_position());
    holders.push_back({.tenant = caller.share(),
                       .weight = caller.limits.weight,
                       .priority = sequence->request.priority,
                       .started = sequence->started.time_since_epoch().count(),
                       .pages = slots ? 1 : pages,
                       .may = !sequence->preemption.pending && !has_all});
  }
  return holders;
}

// Sequences that run continue with the pages of idle sessions, then with those of one that is
// preempted, which may be one of them.
void Engine::find_pages_for(std::span<const ShortOfPages> left_out) {
  const auto missing = [&] {
    int32_t pages = 0;
    for (const ShortOfPages& one : left_out) {
      if (!one.sequence->preemption.pending) pages += one.pages;
    }
    return pages;
  };
  while (missing() > pages_to_come()) {
    if (waiting_.give_resident_state() || sessions_.evict_one()) continue;
    const std::optional<size_t> victim = choose_victim(page_holders());
    if (!victim) return;
    running_[*victim]->preemption.pending = true;
  }
}

// A request of a tenant that has little starts with the pages, or the slot, of one that has much.
void Engine::make_way_for(const Need& need) {
  const bool slot = need.pages == 0;
  const auto gives = [](const auto& one) { return one->preemption.pending; };
  while (slot ? std::ranges::none_of(running_, gives) : need.pages > pages_to_come()) {
    const std::optional<size_t> victim = choose_victim_for(need, page_holders(slot));
    if (!victim) return;
    running_[*victim]->preemption.pending = true;
  }
}

// Takes the slots of sequences that are to give them up, once no step with them is under way. False
// if there were none.
bool Engine::preempt() {
  bool any = false;
  for (auto& sequence : running_) {
    const bool rests = sequence->under_way == 0 && pool_.ready(sequence->slot);
    if (!sequence->preemption.pending || sequence->ended || !rests) continue;
    preempt(sequence);
    any = true;
  }
  std::erase(running_, nullptr);
  if (any) retire(Clock::now());  // one that could not be saved
  return any;
}

// Its state is saved as any state is; its tokens, guide and history stay with it.
void Engine::preempt(std::unique_ptr<Sequence>& sequence) {
  Sequence& one = *sequence;
  one.preemption.pending = false;
  try {
    one.preemption.state = states_.save(StateCache::Owner::kPreempted, one.slot, one.position);
    ++one.preemption.count;
    one.preemption.last = Clock::now();
    StateSlot slot = std::move(one.slot);
    waiting_.requeue(sequence);
    ++stats_.preemptions;
  } catch (const std::bad_alloc&) {
    one.end(EndReason::kNoMemory);
  }
}

}  // namespace recurve
