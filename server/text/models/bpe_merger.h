#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/text/models/flat_table.h"
#include "server/text/work_limits.h"

namespace recurve {

// The symbols of one word, which can be read several times.
class SymbolSource {
 public:
  virtual ~SymbolSource() = default;
  // Appends the ids of the next symbols, up to `size` in `symbols`; false at the end of the word.
  virtual bool read(size_t size, std::vector<int32_t>* symbols) = 0;
  virtual void rewind() = 0;
};

// Byte pair encoding: of all adjacent pairs that have a merge rule, the pair of lowest rank (the
// leftmost of equals) is merged into one symbol, until no rule applies (Sennrich et al. 2016,
// algorithm 1).
class BpeMerger {
 public:
  // Scratch memory of merge(), which the caller reuses from word to word.
  struct Workspace {
    struct Symbol {
      int32_t id;      // -1: merged away
      int32_t prev;    // index in symbols, -1: none
      int32_t next;    // index in symbols, -1: none
      int32_t rank;    // of the merge of this symbol and the next; -1: none
      int32_t merged;  // the id of that merge
    };
    std::vector<int32_t> window;
    std::vector<Symbol> symbols;
    // Pairs to merge, as rank << 32 | index of the left symbol: in order from sorted[next] on, and
    // in a heap those added since.
    std::vector<uint64_t> sorted;
    size_t next = 0;
    std::vector<uint64_t> heap;
  };

  // Merges the pair (left, right) into `merged`. A later rule for a pair replaces an earlier one.
  void add_rule(int32_t left, int32_t right, int32_t rank, int32_t merged);
  size_t rules() const { return rules_.size(); }

  // Merges the symbols of one word and appends the resulting ids.
  //
  // A long word is merged in windows, in memory that does not grow with it: the symbols of the last
  // ids of a window (the overlap) are merged again at the beginning of the next. If the first of
  // these ids is the same again, the result equals that for the whole word: a sequence of ids is
  // the result of BPE if and only if every two adjacent ids are the result for their own symbols,
  // because a merge depends on its own two symbols only, so that the first merge across a boundary
  // in the sequence would also be the first in the two ids' symbols alone. Otherwise wider windows
  // are tried. Time for n symbols is at most O(n log n), and nearly always O(n).
  void merge(SymbolSource& word, Workspace& work, const WorkLimits& limits,
             std::vector<int32_t>& out) const;

 private:
  struct Rule {
    int32_t rank = -1;
    int32_t merged = -1;
  };

  bool merge_in_windows(SymbolSource& word, size_t size, Workspace& work, const WorkLimits& limits,
                        std::vector<int32_t>& out) const;
  void merge_window(Workspace& work) const;
  void look_up(int32_t left, Workspace& work) const;
  void push_pair(int32_t left, Workspace& work) const;
  static uint64_t pop_least(Workspace& work);
  static void merge_pair(int32_t left, Workspace& work);

  FlatTable<Rule> rules_;  // left id << 32 | right id
};

}  // namespace recurve
