#pragma once
#include <map>
#include <utility>

#include "model/state/state_pool.h"
#include "server/request/binding.h"

namespace recurve {

// Initial states that hold slots, of a model whose states grow: what starts from one
// shares its full pages, and copies the rest. They take what nothing else needs, and give it back
// at once. Belongs to the engine's thread; the pool outlives it.
class ResidentStates {
 public:
  explicit ResidentStates(StatePool& pool) : pool_(pool) {}

  // Null: it is in none.
  const StateSlot* find(const InitialState* state) const {
    const auto found = slots_.find(state);
    return found == slots_.end() ? nullptr : &found->second;
  }
  // Full pages of `state` that another slot would share.
  int32_t shared_pages(const InitialState* state) const {
    return find(state) == nullptr ? 0 : static_cast<int32_t>(state->position / kPageTokens);
  }
  // Takes a slot for the state that `from` has, if slots remain for others.
  void keep(const InitialState& state, const StateSlot& from) {
    if (pool_.free_slots() < 2) return;
    StateSlot slot = std::move(*pool_.acquire_unset());
    if (!pool_.share_pages(from, slot, state.position)) return;
    pool_.copy(from, slot, state.position);
    slots_.emplace(&state, std::move(slot));
  }
  // Gives back a slot, of another state than `but`. False: there is none.
  bool give_one(const InitialState* but = nullptr) {
    for (auto at = slots_.begin(); at != slots_.end(); ++at) {
      if (at->first == but) continue;
      slots_.erase(at);
      return true;
    }
    return false;
  }
  int slots() const { return static_cast<int>(slots_.size()); }

 private:
  StatePool& pool_;
  std::map<const InitialState*, StateSlot> slots_;
};

}  // namespace recurve
