#include "server/text/models/bpe_merger.h"

#include <algorithm>
#include <functional>

namespace recurve {
namespace {

using Symbol = BpeMerger::Workspace::Symbol;

// Symbols of the first windows: with their heap they fit in the L1 cache.
constexpr size_t kMergeWindow = 512;
// How many ids of a window the next one begins with.
constexpr int kOverlap = 16;

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

Symbol& at(BpeMerger::Workspace& work, int32_t index) {
  return work.symbols[static_cast<size_t>(index)];
}

// The symbol at which the last kOverlap ids of a merged window begin; 0 if it has no more ids.
int32_t overlap_begin(BpeMerger::Workspace& work) {
  auto index = static_cast<int32_t>(work.symbols.size()) - 1;
  while (at(work, index).id < 0) --index;
  for (int i = 1; i < kOverlap && index > 0; ++i) index = at(work, index).prev;
  return index;
}

// The ids before symbol `end`; -1: all. The first symbol is always the left one of a merge.
void append_ids(BpeMerger::Workspace& work, int32_t end, std::vector<int32_t>& out) {
  if (work.symbols.empty()) return;
  for (int32_t i = 0; i != end; i = at(work, i).next) out.push_back(at(work, i).id);
}

}  // namespace

void BpeMerger::add_rule(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  rules_[pair_of(left, right)] = {rank, merged};
}

void BpeMerger::merge(SymbolSource& word, Workspace& work, const WorkLimits& limits,
                      std::vector<int32_t>& out) const {
  const size_t begin = out.size();
  for (size_t size = kMergeWindow; !merge_in_windows(word, size, work, limits, out); size *= 4) {
    out.resize(begin);
    word.rewind();
  }
}

// False if windows of `size` symbols are too narrow (see merge()).
bool BpeMerger::merge_in_windows(SymbolSource& word, size_t size, Workspace& work,
                                 const WorkLimits& limits, std::vector<int32_t>& out) const {
  work.window.clear();
  int32_t overlap = -1;  // the id with which the window must begin
  while (true) {
    const bool more = word.read(size, &work.window);
    merge_window(work);
    if (overlap >= 0 && at(work, 0).id != overlap) return false;
    const int32_t end = more ? overlap_begin(work) : -1;
    if (end == 0) return false;
    append_ids(work, end, out);
    limits.check(out.size());
    if (!more) return true;
    overlap = at(work, end).id;
    // A larger window if the overlap, which is merged twice, is much of it.
    if (work.window.size() - static_cast<size_t>(end) > size / 4) size *= 4;
    work.window.erase(work.window.begin(), work.window.begin() + end);
  }
}

void BpeMerger::merge_window(Workspace& work) const {
  const auto n = static_cast<int32_t>(work.window.size());
  work.symbols.resize(work.window.size());
  work.sorted.clear();
  work.next = 0;
  for (int32_t i = 0; i < n; ++i) {
    at(work, i) = {work.window[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1, -1, -1};
  }
  for (int32_t i = 0; i + 1 < n; ++i) push_pair(i, work);
  while (work.next < work.sorted.size() || !work.heap.empty()) {
    const uint64_t least = pop_least(work);
    const auto rank = static_cast<int32_t>(least >> 32);
    const auto left = static_cast<int32_t>(least & 0xFFFFFFFF);
    if (at(work, left).rank != rank) continue;  // one of the two has been merged since
    merge_pair(left, work);
    push_pair(left, work);
    if (at(work, left).prev >= 0) push_pair(at(work, left).prev, work);
  }
}

// Sets the merge of the symbol and the next.
void BpeMerger::look_up(int32_t left, Workspace& work) const {
  Symbol& symbol = at(work, left);
  const Rule* rule = nullptr;
  if (symbol.next >= 0) rule = rules_.find(pair_of(symbol.id, at(work, symbol.next).id));
  symbol.rank = rule == nullptr ? -1 : rule->rank;
  symbol.merged = rule == nullptr ? -1 : rule->merged;
}

void BpeMerger::push_pair(int32_t left, Workspace& work) const {
  look_up(left, work);
  if (at(work, left).rank < 0) return;
  work.heap.push_back(pair_of(at(work, left).rank, left));
  std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
}

// A sorted pair costs less to take than one from a heap, and the pairs of a repetitive word are
// added in order.
uint64_t BpeMerger::pop_least(Workspace& work) {
  if (work.next == work.sorted.size()) {
    work.sorted.swap(work.heap);
    work.heap.clear();
    work.next = 0;
    if (!std::is_sorted(work.sorted.begin(), work.sorted.end())) {
      std::sort(work.sorted.begin(), work.sorted.end());
    }
  }
  if (work.heap.empty() || work.sorted[work.next] < work.heap.front()) {
    return work.sorted[work.next++];
  }
  std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
  const uint64_t least = work.heap.back();
  work.heap.pop_back();
  return least;
}

void BpeMerger::merge_pair(int32_t left_index, Workspace& work) {
  Symbol& left = at(work, left_index);
  Symbol& right = at(work, left.next);
  left.id = left.merged;
  left.next = right.next;
  right.id = right.rank = -1;
  if (right.next >= 0) at(work, right.next).prev = left_index;
}

}  // namespace recurve
