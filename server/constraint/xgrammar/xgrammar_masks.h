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

// The masks of a grammar's states, which deploy/xgrammar.sh puts in the place of the library's hash
// map. That map takes 230 bytes for each byte of a literal, whose mask has one or two tokens; this
// one takes 16. Larger masks are bits where lists would take more, and equal parts are stored once.
class MaskTable {
 public:
  using Mask = std::shared_ptr<const xgrammar::AdaptiveTokenMask>;

  // Once for each state.
  void put(int32_t state, const xgrammar::AdaptiveTokenMask& mask);
  // The mask of another table's state, if it has one. They share what is large.
  void put(int32_t state, const MaskTable& other, int32_t other_state);
  Mask find(int32_t state) const;  // valid as long as the table is; null: it has none
  size_t bytes() const;            // of memory

  // Under the names that the library uses.
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

  int32_t place_of(int32_t state) const;
  void set_place(int32_t state, int32_t place);
  void pack(int32_t state, const xgrammar::AdaptiveTokenMask& mask);
  void add(int32_t state, Whole whole);
  void share(Words* words);

  // By state. 0: none. Above: one more than where it begins in packed_. Below: the negative of one
  // more than its index in whole_.
  std::vector<int32_t> places_;
  std::vector<int32_t> packed_;  // the kind, both counts, and the tokens
  std::vector<Whole> whole_;
  std::set<Words, Less> words_;  // of whole_
  size_t words_bytes_ = 0;
};

// Of memory, about.
size_t bytes_of(const xgrammar::CompiledGrammar& compiled);

}  // namespace recurve
