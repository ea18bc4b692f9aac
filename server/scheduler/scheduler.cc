#include "server/scheduler/scheduler.h"

#include <algorithm>

namespace recurve {
namespace {

// Gives sequence i one more chunk if that fits; false if it has had all it can.
bool grant_chunk(const StepBounds& bounds, const Pending& pending, int& rows, int& rows_left,
                 int& logits_left) {
  const int piece = std::min(pending.tokens - rows, bounds.chunk);
  const bool ends = rows + piece == pending.tokens;
  const int logits = pending.scored ? piece : (ends ? 1 : 0);
  if (piece == 0 || piece > rows_left || logits > logits_left) return false;
  rows += piece;
  rows_left -= piece;
  logits_left -= logits;
  return true;
}

}  // namespace

std::vector<int> plan_step(const StepBounds& bounds, std::span<const Pending> pending,
                           size_t first) {
  std::vector<int> rows(pending.size(), 0);
  int rows_left = bounds.rows, logits_left = bounds.logits;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].prompt || pending[i].tokens == 0) continue;
    rows[i] = 1;
    --rows_left;
    --logits_left;
  }
  for (bool granted = true; granted;) {
    granted = false;
    for (size_t turn = 0; turn < pending.size(); ++turn) {
      const size_t i = (first + turn) % pending.size();
      if (!pending[i].prompt) continue;
      granted |= grant_chunk(bounds, pending[i], rows[i], rows_left, logits_left);
    }
  }
  return rows;
}

size_t next_first(std::span<const Pending> pending, size_t first) {
  for (size_t turn = 0; turn < pending.size(); ++turn) {
    const size_t i = (first + turn) % pending.size();
    const bool had_its_turn = pending[i].prompt && pending[i].tokens > 0;
    if (had_its_turn) return (i + 1) % pending.size();
  }
  return 0;
}

}  // namespace recurve
