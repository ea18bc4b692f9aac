#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/check.h"
#include "model/state/state_pool.h"

namespace recurve {

// A state outside its slot: its arrays one after the other, in the order of the layout.
using StateBytes = std::vector<std::byte>;

inline StateBytes bytes_in(const StateLayout& layout, const StateImage& image) {
  StateBytes bytes;
  for (const auto span : spans_of_arrays(layout, spans_of(image))) {
    bytes.insert(bytes.end(), span.begin(), span.end());
  }
  return bytes;
}

inline StateImage image_of_bytes(const StateLayout& layout, const StateBytes& bytes) {
  CHECK(bytes.size() == layout.bytes());
  const NewImage made = make_image(layout);
  auto from = bytes.begin();
  for (const auto room : spans_of_arrays(layout, made.rooms)) {
    const auto end = from + static_cast<ptrdiff_t>(room.size());
    std::copy(from, end, room.begin());
    from = end;
  }
  return made.image;
}

inline StateBytes state_in(StatePool& pool, const StateSlot& slot) {
  const NewImage made = make_image(pool.layout());
  pool.save(slot, made);
  pool.wait_until_ready(slot);
  return bytes_in(pool.layout(), made.image);
}

inline void put_state(StatePool& pool, const StateBytes& state, const StateSlot& slot) {
  pool.load(image_of_bytes(pool.layout(), state), slot);
  pool.wait_until_ready(slot);
}

}  // namespace recurve
