#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "model/state/state_layout.h"

namespace recurve {

class StatePool;

// A place in the pool, or none. Move-only; gives the place back when destroyed. The pool outlives
// it.
class StateSlot {
 public:
  StateSlot() = default;
  StateSlot(StateSlot&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  StateSlot& operator=(StateSlot&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~StateSlot();
  int32_t id() const { return id_; }

 private:
  friend class StatePool;
  StateSlot(StatePool* pool, int32_t id) : pool_(pool), id_(id) {}
  StatePool* pool_ = nullptr;
  int32_t id_ = 0;
};

// The states of all sequences: of each array of the layout, all slots lie together, (slots, shape).
// A state never grows, so admitting a request is asking for one free slot. Not thread-safe: it
// belongs to the engine's thread. Copies go through the stream and so keep their order with the
// steps; save() waits for it.
class StatePool {
 public:
  StatePool(Backend& backend, const StateLayout& layout, int slots, Stream& stream);

  std::optional<StateSlot>
  acquire();  // zeroed, whatever the slot held before; empty if none is free
  void copy(const StateSlot& from, const StateSlot& to);
  // image: the arrays of the layout, one after the other, in host memory. (layout().bytes())
  void save(const StateSlot& slot, std::span<std::byte> image);
  void load(std::span<const std::byte> image, const StateSlot& slot);

  // Array number `index` of the layout, slot 0 first: (slots, shape of that array).
  template <typename T = float>
  T* array(size_t index) const {
    return arrays_[index].as<T>();
  }
  // The same as an op takes it, F32 or BF16.
  StateData data(size_t index) const {
    return {arrays_[index].data(), layout_.arrays[index].dtype};
  }
  const StateLayout& layout() const { return layout_; }
  int slots() const { return slots_; }
  int free_slots() const { return static_cast<int>(free_.size()); }

 private:
  friend class StateSlot;
  std::byte* row(size_t index, int32_t id) const {
    return arrays_[index].data() + static_cast<size_t>(id) * layout_.arrays[index].bytes();
  }
  Backend& backend_;
  Stream& stream_;
  const StateLayout layout_;
  const int slots_;  // that sequences can have: slot 0, the scratch slot, not counted
  std::vector<Buffer> arrays_;
  std::vector<int32_t> free_;
};

}  // namespace recurve
