#include "server/sampling/token_history.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/check.h"

namespace recurve {
namespace {

uint32_t saturating_add(uint32_t a, uint32_t b) {
  return b > std::numeric_limits<uint32_t>::max() - a ? std::numeric_limits<uint32_t>::max()
                                                      : a + b;
}

}  // namespace

void TokenHistory::add_prompt(int32_t id, uint32_t times) {
  Entry& e = entry(id);
  e.prompt = saturating_add(e.prompt, times);
}

void TokenHistory::add_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) add_prompt(id);
}

void TokenHistory::add_generated(int32_t id, uint32_t times) {
  Entry& e = entry(id);
  e.generated = saturating_add(e.generated, times);
}

void TokenHistory::begin_request() {
  for (Entry& e : entries_) {
    e.prompt = saturating_add(e.prompt, e.generated);
    e.generated = 0;
  }
}

TokenHistory::Entry TokenHistory::count(int32_t id) const {
  if (table_.empty()) return {id, 0, 0};
  const int32_t at = table_[place(id)];
  return at < 0 ? Entry{id, 0, 0} : entries_[static_cast<size_t>(at)];
}

TokenHistory::Entry& TokenHistory::entry(int32_t id) {
  CHECK(id >= 0);
  if (table_.size() < 2 * (entries_.size() + 1)) grow();
  int32_t& at = table_[place(id)];
  if (at < 0) {
    at = static_cast<int32_t>(entries_.size());
    entries_.push_back({id, 0, 0});
  }
  return entries_[static_cast<size_t>(at)];
}

uint32_t TokenHistory::place(int32_t id) const {
  // Fibonacci hashing: the product's high bits.
  const int bits = std::countr_zero(table_.size());
  const uint32_t mask = static_cast<uint32_t>(table_.size() - 1);
  uint32_t at = (static_cast<uint32_t>(id) * 0x9E3779B1u) >> (32 - bits);
  while (table_[at] >= 0 && entries_[static_cast<size_t>(table_[at])].id != id)
    at = (at + 1) & mask;
  return at;
}

void TokenHistory::grow() {
  table_.assign(std::max<size_t>(16, 2 * table_.size()), -1);
  for (size_t i = 0; i < entries_.size(); ++i) {
    table_[place(entries_[i].id)] = static_cast<int32_t>(i);
  }
}

}  // namespace recurve
