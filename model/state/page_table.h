#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace recurve {

// Which pages of a pool each slot has, in the order of its tokens. A page may be of several slots,
// which share what they have in common: such a page is read only. Pure: it knows no memory. Page 0
// and slot 0 are scratch: slot 0 has no pages, and whatever reads or writes one of its tokens is
// given page 0. Not thread-safe.
class PageTable {
 public:
  // pages: that slots can have, numbered from 1. most: of one slot.
  PageTable(int slots, int32_t pages, int32_t most);

  int32_t pages() const { return static_cast<int32_t>(references_.size()) - 1; }
  int32_t most() const { return most_; }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }
  int32_t held_pages() const { return static_cast<int32_t>(held_.size()); }  // see hold_until()
  std::span<const int32_t> of(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  bool shared(int32_t page) const { return references_[static_cast<size_t>(page)] > 1; }

  // So many pages for the slot, or what it has where that is more. False, and nothing is changed,
  // where too few are free. count: at most most().
  bool grow(int32_t slot, int32_t count);
  // The first `count` pages of `from` for `to` too, which has none.
  void share(int32_t from, int32_t to, int32_t count);
  // No more than the first `count` pages; the others go back.
  void shrink(int32_t slot, int32_t count);
  // For writing to a page of a slot: nothing where it is the slot's alone. Otherwise a free page
  // takes its place, into which the caller copies what the old one has; none are free: see `done`.
  struct Own {
    bool done = true;
    int32_t from = 0, to = 0;  // to copy; 0: nothing
  };
  Own own(int32_t slot, int32_t index);

  // Pages that go back from now on are free only once reclaim() is called with a number that is not
  // smaller: copies from them may be under way until then. Numbers ascend.
  void hold_until(uint64_t ticket) { held_until_ = ticket; }
  void reclaim(const std::function<bool(uint64_t ticket)>& done);

  // The slots whose pages have changed since take_changed(), ascending.
  std::vector<int32_t> changed() const;
  std::vector<int32_t> take_changed();

 private:
  void release(int32_t page);
  void note(int32_t slot);

  const int32_t most_;
  std::vector<std::vector<int32_t>> slots_;  // (slots + 1)
  std::vector<uint32_t> references_;         // (pages + 1)
  std::vector<int32_t> free_;
  struct Held {
    uint64_t ticket;
    int32_t page;
  };
  std::deque<Held> held_;
  uint64_t held_until_ = 0;
  std::vector<bool> changed_;  // (slots + 1)
};

}  // namespace recurve
