#include "server/text/bpe_merger.h"

#include <algorithm>

namespace recurve {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// std heaps keep the greatest in front; the least is wanted.
bool later(const BpeMerger::Workspace::Candidate& a, const BpeMerger::Workspace::Candidate& b) {
  return a.order > b.order;
}

}  // namespace

void BpeMerger::add_rule(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  rules_.insert_or_assign(pair_key(left, right), Rule{rank, merged});
}

void BpeMerger::merge(const std::vector<int32_t>& word, Workspace& work,
                      std::vector<int32_t>& out) const {
  const auto n = static_cast<int32_t>(word.size());
  work.symbols.clear();
  work.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    work.symbols.push_back({word[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < n; ++i) offer(i, work);
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), later);
    const Workspace::Candidate best = work.heap.back();
    work.heap.pop_back();
    const auto left = static_cast<int32_t>(best.order & 0xFFFFFFFF);
    const Workspace::Symbol& symbol = work.symbols[static_cast<size_t>(left)];
    if (symbol.id != best.left || symbol.next < 0) continue;
    if (work.symbols[static_cast<size_t>(symbol.next)].id != best.right) continue;
    apply(best, work);
    if (symbol.prev >= 0) offer(symbol.prev, work);
    offer(left, work);
  }
  // The first symbol is never merged away, only into.
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = work.symbols[static_cast<size_t>(i)].next) {
    out.push_back(work.symbols[static_cast<size_t>(i)].id);
  }
}

void BpeMerger::offer(int32_t left_index, Workspace& work) const {
  const Workspace::Symbol& left = work.symbols[static_cast<size_t>(left_index)];
  if (left.next < 0) return;
  const int32_t right = work.symbols[static_cast<size_t>(left.next)].id;
  const auto rule = rules_.find(pair_key(left.id, right));
  if (rule == rules_.end()) return;
  const uint64_t order =
      static_cast<uint64_t>(rule->second.rank) << 32 | static_cast<uint32_t>(left_index);
  work.heap.push_back({order, left.id, right, rule->second.merged});
  std::push_heap(work.heap.begin(), work.heap.end(), later);
}

void BpeMerger::apply(const Workspace::Candidate& best, Workspace& work) {
  const auto left_index = static_cast<int32_t>(best.order & 0xFFFFFFFF);
  Workspace::Symbol& left = work.symbols[static_cast<size_t>(left_index)];
  Workspace::Symbol& right = work.symbols[static_cast<size_t>(left.next)];
  left.id = best.merged;
  left.next = right.next;
  right.id = -1;
  if (right.next >= 0) work.symbols[static_cast<size_t>(right.next)].prev = left_index;
}

}  // namespace recurve
