#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace recurve {

// A hash map from 64-bit keys below 2^64 - 1 that is built once and then searched many times: open
// addressing in one array whose size is a power of two, at most half full.
template <class Value>
class FlatTable {
 public:
  size_t size() const { return size_; }

  // Null if there is no such key.
  const Value* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  // The value of the key, which is added if there is none. Valid until the next call.
  Value& operator[](uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    if (slot.key != key) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Value value{};
  };

  // The slot of the key, or the free slot for it.
  size_t slot_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    size_t slot = static_cast<size_t>(mixed ^ mixed >> 32) & mask;
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & mask;
    return slot;
  }
  void grow() {
    const size_t size = std::max<size_t>(16, 2 * slots_.size());
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(size));
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
    }
  }

  size_t size_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace recurve
