#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/text/models/flat_table.h"

namespace recurve {

// Byte strings with a number each, to be found at a place of a text: nodes are walked byte by byte.
// Constant after the last add().
class Trie {
 public:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;  // no node; no number

  // A name that is there already keeps its first number, and false is returned. `number` >= 0.
  bool add(std::string_view name, int32_t number) {
    int32_t node = kRoot;
    for (const char c : name) {
      int32_t& child = children_[key(node, c)];
      if (child == 0) {  // nothing leads back to the root
        child = static_cast<int32_t>(numbers_.size());
        numbers_.push_back(kNone);
      }
      node = child;
    }
    if (numbers_[static_cast<size_t>(node)] != kNone) return false;
    numbers_[static_cast<size_t>(node)] = number;
    return true;
  }

  // The node behind `node` and a byte, or kNone.
  int32_t next(int32_t node, char byte) const {
    const int32_t* child = children_.find(key(node, byte));
    return child == nullptr ? kNone : *child;
  }
  // The number of the name that ends at the node, or kNone.
  int32_t number(int32_t node) const { return numbers_[static_cast<size_t>(node)]; }

 private:
  static uint64_t key(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
  }

  FlatTable<int32_t> children_;  // node << 8 | byte -> node
  std::vector<int32_t> numbers_ = {kNone};
};

}  // namespace recurve
