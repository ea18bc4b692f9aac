#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace recurve {

// Byte pair encoding: of all neighbours that have a merge rule, the pair of lowest rank (the
// leftmost of equals) becomes one symbol, until no rule applies (Sennrich et al. 2016, algorithm
// 1).
class BpeMerger {
 public:
  // What merge() works in; kept by the caller so that words reuse the memory.
  struct Workspace {
    struct Symbol {
      int32_t id;    // -1: merged away
      int32_t prev;  // index in symbols, -1: none
      int32_t next;
    };
    struct Candidate {
      uint64_t order;  // rank << 32 | index of the left symbol: least first
      int32_t left;    // the ids the candidate was made for; it is stale if they have changed
      int32_t right;
      int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // The pair (left, right) becomes `merged`. A rule for the same pair replaces the earlier one.
  void add_rule(int32_t left, int32_t right, int32_t rank, int32_t merged);
  size_t rules() const { return rules_.size(); }

  // Merges the symbols of one word and appends the ids that remain. O(n log n) for n symbols, by a
  // linked list and a heap: each merge removes a symbol and adds at most two candidates.
  // At most 2^31 - 1 symbols.
  void merge(const std::vector<int32_t>& word, Workspace& work, std::vector<int32_t>& out) const;

 private:
  struct Rule {
    int32_t rank;
    int32_t merged;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const {
      pair *= 0x9E3779B97F4A7C15u;
      return static_cast<size_t>(pair ^ pair >> 32);
    }
  };

  void offer(int32_t left_index, Workspace& work) const;
  static void apply(const Workspace::Candidate& best, Workspace& work);

  std::unordered_map<uint64_t, Rule, PairHash> rules_;  // left id << 32 | right id
};

}  // namespace recurve
