#pragma once
#include <cstddef>
#include <vector>

#include "model/state/state_pool.h"

namespace recurve {

// A state outside its slot, as StatePool::save() writes it.
using StateBytes = std::vector<std::byte>;

inline StateBytes state_in(StatePool& pool, const StateSlot& slot) {
  StateBytes bytes(pool.layout().bytes());
  pool.save(slot, bytes);
  return bytes;
}

}  // namespace recurve
