#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/check.h"
#include "model/state/state_pool.h"

namespace recurve {

// A state outside its slot, as StatePool::save() writes it.
using StateBytes = std::vector<std::byte>;

inline StateBytes state_in(StatePool& pool, const StateSlot& slot) {
  const size_t bytes = pool.layout().bytes();
  const std::shared_ptr<std::byte[]> image(new std::byte[bytes]);
  pool.save(slot, std::shared_ptr<std::byte>(image, image.get()));
  pool.wait_until_ready(slot);
  return {image.get(), image.get() + bytes};
}

inline void put_state(StatePool& pool, const StateBytes& state, const StateSlot& slot) {
  CHECK(state.size() == pool.layout().bytes());
  const auto image = std::make_shared<const StateBytes>(state);
  pool.load(StateImage(image, image->data()), slot);
  pool.wait_until_ready(slot);
}

}  // namespace recurve
