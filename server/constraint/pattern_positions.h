#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/constraint/character_set.h"

namespace recurve {

// A set of positions of a pattern.
class Positions {
 public:
  void add(size_t position) {
    grow(position / 64 + 1);
    words_[position / 64] |= uint64_t{1} << (position % 64);
  }
  void add(const Positions& other) {
    grow(other.words_.size());
    for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool meets(const Positions& other) const {
    for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) {
      if ((words_[i] & other.words_[i]) != 0) return true;
    }
    return false;
  }
  // Those also in `other`, in order.
  template <typename Visit>
  void each_in(const Positions& other, Visit visit) const {
    for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) {
      for (uint64_t word = words_[i] & other.words_[i]; word != 0; word &= word - 1) {
        visit(i * 64 + static_cast<size_t>(__builtin_ctzll(word)));
      }
    }
  }
  bool operator<(const Positions& other) const { return words_ < other.words_; }

 private:
  void grow(size_t words) {
    if (words_.size() < words) words_.resize(words);
  }
  std::vector<uint64_t> words_;  // the last one is not 0
};

// A pattern by its positions, each of which takes one character: where a string begins and ends,
// and what follows each (Glushkov's automaton).
struct PositionGraph {
  std::vector<CharacterSet> characters = {};
  std::vector<Positions> follow = {};
  Positions first = {}, last = {};
  bool takes_nothing = false;
};

// Of a result of json_pattern().
PositionGraph positions_of(std::string_view pattern);

}  // namespace recurve
