#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/copier.h"
#include "model/state/state_image.h"

namespace recurve {

class StatePool;

// A slot of the pool, or none. Move-only; returns the slot when destroyed. The pool outlives
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
// Arrays that grow have no place here: a layout must have none. Not thread-safe: it belongs to the
// engine's thread.
//
// Copies of states do not hold up that thread where they take long: acquire(), copy(), save() and
// load() return at once then, and a step may use the slot once it is ready(). All of them are in
// one order with each other and with the steps on the stream, so no caller has to wait to ask for
// the next one: an image may be loaded that is still being saved, and a slot given back that is
// still being copied from.
class StatePool {
 public:
  // on_copied: called whenever a slot may have become ready, on another thread: may only post.
  StatePool(Backend& backend, const StateLayout& layout, int slots, Stream& stream,
            std::function<void()> on_copied = {});

  // Zeroed, whatever the slot held before; empty if none is free.
  std::optional<StateSlot> acquire();
  // With whatever the slot held before: for what is copied or loaded into it.
  std::optional<StateSlot> acquire_unset();
  void copy(const StateSlot& from, const StateSlot& to);
  // image: of the layout's pieces; prepare: called before it is first touched, possibly on another
  // thread; or none.
  void save(const StateSlot& slot, const NewImage& image, std::function<void()> prepare = {});
  void load(StateImage image, const StateSlot& slot);

  // Whether no copy to or from the slot is under way. These throw std::runtime_error once a copy
  // has failed.
  bool ready(const StateSlot& slot) const;
  void wait_until_ready(const StateSlot& slot);
  bool copying() const;  // of any slot
  // A ticket for copied(), which tells whether all copies requested so far are done, images too.
  Copier::Ticket asked() const { return copier_ == nullptr ? 0 : copier_->last(); }
  bool copied(Copier::Ticket asked) const { return copier_ == nullptr || copier_->done(asked); }
  // Until none is under way, whether or not one has failed; the pool holds no image then.
  void wait_for_copies() noexcept;

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
  void copy_beside(const StateSlot& slot, Copier::Job job);
  Copier::Ticket& last_copy(const StateSlot& slot) { return last_copy_[index_of(slot)]; }
  static size_t index_of(const StateSlot& slot) { return static_cast<size_t>(slot.id()); }

  Backend& backend_;
  Stream& stream_;
  const StateLayout layout_;
  const std::vector<StatePieceLayout> pieces_;
  const int slots_;  // that sequences can have: slot 0, the scratch slot, not counted
  std::vector<Buffer> arrays_;
  std::vector<int32_t> free_;
  std::vector<Copier::Ticket> last_copy_;  // (slots + 1) to or from the slot
  std::unique_ptr<Copier> copier_;         // null: states are small, and copied at once
};

}  // namespace recurve
