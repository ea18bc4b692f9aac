#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/text/models/flat_table.h"
#include "server/text/work_limits.h"

namespace recurve {

// The symbols of a word, from its beginning and as often as they are asked for.
class SymbolSource {
 public:
  virtual ~SymbolSource() = default;
  // Appends the ids of symbols that come next, until `symbols` has `size` or the word has ended;
  // false if it has.
  virtual bool read(size_t size, std::vector<int32_t>* symbols) = 0;
  virtual void rewind() = 0;
};

// Byte pair encoding: of all neighbours that have a merge rule, the pair of lowest rank (the
// leftmost of equals) becomes one symbol, until no rule applies (Sennrich et al. 2016, algorithm
// 1).
class BpeMerger {
 public:
  // What merge() works in; kept by the caller so that words reuse the memory.
  struct Workspace {
    struct Symbol {
      int32_t id;      // -1: merged away
      int32_t prev;    // index in symbols, -1: none
      int32_t next;    // likewise
      int32_t rank;    // of the rule for this symbol and the next; -1: there is none
      int32_t merged;  // what that rule makes of them
    };
    std::vector<int32_t> window;
    std::vector<Symbol> symbols;
    // Pairs that may be merged, as rank << 32 | index of the left symbol: those from sorted[next]
    // on, least first, and in a heap those that have come since.
    std::vector<uint64_t> sorted;
    size_t next = 0;
    std::vector<uint64_t> heap;
  };

  // The pair (left, right) becomes `merged`. A rule for the same pair replaces the earlier one.
  void add_rule(int32_t left, int32_t right, int32_t rank, int32_t merged);
  size_t rules() const { return rules_.size(); }

  // Merges the symbols of one word and appends the ids that remain.
  //
  // A long word is merged in windows, in memory that does not grow with it: the last ids of a
  // window are merged again with what follows. If the first of them comes out again, then all is as
  // if the whole word had been merged at once. For a sequence of ids is the result of BPE just if
  // any two neighbours in it are the result for their own symbols: the first merge across a border
  // of the sequence would be the first across it in those two symbols' own run as well, since a
  // merge sees its own two symbols only. If it does not, wider windows are tried.
  // Time is O(n log n) at most, for n symbols, and nearly always O(n).
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
  void offer(int32_t left, Workspace& work) const;
  static uint64_t take_least(Workspace& work);
  static void apply(int32_t left, Workspace& work);

  FlatTable<Rule> rules_;  // left id << 32 | right id
};

}  // namespace recurve
