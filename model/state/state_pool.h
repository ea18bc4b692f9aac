#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/copier.h"
#include "model/state/page_table.h"
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

// What arrays that grow take, where a layout has such.
struct PageLimits {
  int32_t pages = 0;        // of all states together
  int64_t most_tokens = 0;  // of one state
};

// The states of all sequences: of each array of the layout, all slots lie together, (slots, shape).
// Arrays that grow lie in pages, each with the rows of kPageTokens tokens of all of them; several
// slots may share a page that is full. A slot has pages for as many tokens as grow() was asked for.
// Not thread-safe: it belongs to the engine's thread.
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
            std::function<void()> on_copied = {}, PageLimits pages = {});

  // Zeroed, whatever the slot held before; empty if none is free.
  std::optional<StateSlot> acquire();
  // With whatever the slot held before: for what is copied or loaded into it.
  std::optional<StateSlot> acquire_unset();
  // tokens: that the state has absorbed, here and below; of layouts that grow, `to` has had
  // share_pages() before, and a slot that is loaded into reserve().
  void copy(const StateSlot& from, const StateSlot& to, int64_t tokens = 0);
  // image: of the layout's pieces, of which those without memory are left out; prepare: called
  // before it is first touched, possibly on another thread; or none.
  void save(const StateSlot& slot, const NewImage& image, std::function<void()> prepare = {});
  void load(StateImage image, const StateSlot& slot);

  // Of layouts that grow. Pages for so many tokens, which may be written from token `from` on;
  // those that have no token before it become zero, so that nothing of an earlier session is in
  // them. False, and the slot has what it had, where too few are free.
  bool grow(const StateSlot& slot, int64_t from, int64_t tokens);
  // Pages for so many tokens, contents unset: to be loaded, or for grow() to find them there.
  // False, and the slot has what it had, where too few are free.
  bool reserve(const StateSlot& slot, int64_t tokens);
  // Free pages that grow() needs.
  int32_t missing_pages(const StateSlot& slot, int64_t from, int64_t tokens) const;
  // Of the pages of `from`, for so many tokens, the full ones for `to` too, which has none, and a
  // free one for the last that is not full. False, and nothing is changed, where none is free.
  bool share_pages(const StateSlot& from, const StateSlot& to, int64_t tokens);
  // The pages behind so many tokens go back.
  void truncate(const StateSlot& slot, int64_t tokens);
  int32_t free_pages();
  int32_t pages() const { return table_.pages(); }
  int32_t pages_of(const StateSlot& slot) const {
    return static_cast<int32_t>(table_.of(slot.id()).size());
  }
  // Pages that become free once copies from them are done.
  int32_t held_pages() const { return table_.held_pages(); }
  // Sends what has changed of the table, before the step that follows from it. staged: memory of
  // table_words() that stays as it is until the stream has come there.
  size_t table_words() const;
  void send_table(std::span<int32_t> staged);

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
  // The same of an array that grows.
  PagedData paged(size_t index) const;
  const StateLayout& layout() const { return layout_; }
  int slots() const { return slots_; }
  int free_slots() const { return static_cast<int>(free_.size()); }

 private:
  friend class StateSlot;
  std::byte* row(size_t index, int32_t id) const {
    return arrays_[index].data() + static_cast<size_t>(id) * layout_.arrays[index].bytes();
  }
  std::byte* page(int32_t number) const {
    return page_memory_.data() + static_cast<size_t>(number) * page_bytes_;
  }
  void give_back(int32_t slot);
  void truncate_pages(int32_t slot, int32_t count);
  // Of the arrays that do not grow.
  template <typename Visit>
  void for_each_array(Visit visit) const {
    for (size_t a = 0; a < arrays_.size(); ++a) {
      if (!layout_.arrays[a].per_token()) visit(a);
    }
  }
  template <typename Byte, typename Visit>
  void for_each_place(const StateSlot& slot, const std::vector<std::span<Byte>>& image,
                      Visit visit) const;
  void within_device(std::vector<CopyPiece> pieces, const StateSlot& from, const StateSlot& to);
  void copy_beside(const StateSlot& slot, Copier::Job job);
  Copier::Ticket& last_copy(const StateSlot& slot) { return last_copy_[index_of(slot)]; }
  static size_t index_of(const StateSlot& slot) { return static_cast<size_t>(slot.id()); }

  Backend& backend_;
  Stream& stream_;
  const StateLayout layout_;
  const std::vector<StatePieceLayout> pieces_;
  const int slots_;              // that sequences can have: slot 0, the scratch slot, not counted
  std::vector<Buffer> arrays_;   // of those that grow: empty
  std::vector<size_t> in_page_;  // of those that grow: where their rows begin in a page
  const size_t page_bytes_;
  PageTable table_;
  Buffer page_memory_;   // (pages + 1, page_bytes)
  Buffer table_memory_;  // (slots + 1, most) int32
  std::vector<int32_t> free_;
  std::vector<Copier::Ticket> last_copy_;  // (slots + 1) to or from the slot
  std::unique_ptr<Copier> copier_;         // null: states are small, and copied at once
};

}  // namespace recurve
