#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace xgrammar {
struct AdaptiveTokenMask;
class CompiledGrammar;
}  // namespace xgrammar

namespace recurve {

// An array to which values are only added. It is stored in chunks, so that it is not copied as it
// grows.
template <typename Value>
class Chunks {
 public:
  // Adds at most kMost values, which are adjacent. Returns the index of the first.
  size_t add(const std::vector<Value>& values) {
    if (chunks_.empty() || chunks_.back().size() + values.size() > kMost) {
      chunks_.emplace_back();
      if (chunks_.size() > 1) chunks_.back().reserve(kMost);
    }
    std::vector<Value>& last = chunks_.back();
    const size_t index = (chunks_.size() - 1) * kMost + last.size();
    last.insert(last.end(), values.begin(), values.end());
    return index;
  }
  const Value* at(size_t index) const { return chunks_[index / kMost].data() + index % kMost; }
  size_t bytes() const {
    constexpr size_t kOverhead = 8;
    size_t bytes = chunks_.capacity() * sizeof(chunks_[0]);
    for (const auto& chunk : chunks_) bytes += chunk.capacity() * sizeof(Value) + kOverhead;
    return bytes;
  }

  static constexpr size_t kMost = (size_t{64} << 10) / sizeof(Value);

 private:
  std::vector<std::vector<Value>> chunks_;
};

// The masks of a grammar's states. deploy/xgrammar.sh replaces the library's hash map by it, which
// takes 230 bytes for each byte of a literal, whose mask has one or two tokens; this takes 16.
// Larger masks are stored as bits if lists would take more, and equal parts once.
class MaskTable {
 public:
  using Mask = std::shared_ptr<const xgrammar::AdaptiveTokenMask>;

  // At most once for each state.
  void put(int32_t state, const xgrammar::AdaptiveTokenMask& mask);
  // Copies the mask of a state of another table, if there is one. Tables share large parts.
  void put(int32_t state, const MaskTable& other, int32_t other_state);
  Mask find(int32_t state) const;  // valid as long as the table; null: none
  size_t bytes() const;            // of memory

  // Names that the library uses.
  static Mask end() { return nullptr; }
  static Mask cbegin() { return nullptr; }
  friend size_t MemorySize(const MaskTable& table) { return table.bytes(); }

 private:
  using Words = std::shared_ptr<const std::vector<uint32_t>>;
  struct Less {
    bool operator()(const Words& one, const Words& other) const { return *one < *other; }
  };
  // A list of tokens, or a bit for each.
  struct Tokens {
    Words words;
    bool are_bits;
  };
  struct Whole {
    int32_t kind, vocabulary;
    Tokens decided, uncertain;
  };

  int32_t position_of(int32_t state) const;
  void set_position(int32_t state, int32_t position);
  void pack(int32_t state, const xgrammar::AdaptiveTokenMask& mask);
  void add(int32_t state, Whole whole);
  void share(Words* words);

  // [state]. 0: none; n > 0: index n - 1 of packed_; n < 0: index -n - 1 of whole_.
  std::vector<int32_t> positions_;
  Chunks<int32_t> packed_;  // per mask: the kind and both counts, then the tokens
  Chunks<Whole> whole_;
  std::set<Words, Less> words_;  // of whole_
  size_t words_bytes_ = 0;
};

// Approximate memory.
size_t bytes_of(const xgrammar::CompiledGrammar& compiled);

}  // namespace recurve
