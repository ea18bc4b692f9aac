#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/text/models/flat_table.h"

namespace recurve {

// A prefix tree of byte strings, each with a number. Constant after the last add().
class Trie {
 public:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;  // no node, or no number

  // False, without a change, if there is such a string already. `number` >= 0.
  bool add(std::string_view text, int32_t number) {
    int32_t node = kRoot;
    for (const char c : text) {
      int32_t& child = children_[key(node, c)];
      if (child == 0) {  // a new entry: the root is not a child
        child = static_cast<int32_t>(numbers_.size());
        numbers_.push_back(kNone);
      }
      node = child;
    }
    if (numbers_[static_cast<size_t>(node)] != kNone) return false;
    numbers_[static_cast<size_t>(node)] = number;
    return true;
  }

  // The child of `node` for a byte, or kNone.
  int32_t next(int32_t node, char byte) const {
    const int32_t* child = children_.find(key(node, byte));
    return child == nullptr ? kNone : *child;
  }
  // The number of the string that ends at the node, or kNone.
  int32_t number(int32_t node) const { return numbers_[static_cast<size_t>(node)]; }

  // The longest string that `text` begins with.
  struct Match {
    size_t bytes = 0;  // 0: none
    int32_t number = kNone;
    bool open = false;  // with more text, a longer string may match
  };
  // `node`: where to begin; the strings below it are those without its prefix.
  Match longest(std::string_view text, int32_t node = kRoot) const {
    Match match;
    for (size_t i = 0; i < text.size(); ++i) {
      node = next(node, text[i]);
      if (node == kNone) return match;
      if (number(node) != kNone) match = {i + 1, number(node)};
    }
    match.open = true;
    return match;
  }

 private:
  static uint64_t key(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
  }

  FlatTable<int32_t> children_;  // node << 8 | byte -> node
  std::vector<int32_t> numbers_ = {kNone};
};

}  // namespace recurve
