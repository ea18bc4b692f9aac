#include "server/sampling/token_history.h"

#include <algorithm>

#include "kernels/check.h"

namespace recurve {
void TokenHistory::add_prompt(int32_t id) {
  CHECK(id >= 0);
  const auto word = static_cast<size_t>(id) / 64;
  if (word >= prompt_.size()) prompt_.resize(word + 1);
  prompt_[word] |= uint64_t{1} << (id % 64);
}

void TokenHistory::add_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) add_prompt(id);
}

void TokenHistory::add_generated(int32_t id) {
  CHECK(id >= 0);
  if (table_.size() < 2 * (generated_.size() + 1)) grow();
  int32_t& at = table_[index_of(id)];
  if (at < 0) {
    generated_.push_back({id, 0});
    at = static_cast<int32_t>(generated_.size()) - 1;
  }
  ++generated_[static_cast<size_t>(at)].times;
}

void TokenHistory::end_request() {
  for (const Generated& seen : generated_) add_prompt(seen.id);
  generated_ = std::vector<Generated>();
  table_ = std::vector<int32_t>();
  prompt_.shrink_to_fit();
}

bool TokenHistory::is_within(std::span<const uint64_t> ids) const {
  CHECK(generated_.empty());
  for (size_t w = 0; w < prompt_.size(); ++w) {
    if ((prompt_[w] & ~(w < ids.size() ? ids[w] : 0)) != 0) return false;
  }
  return true;
}

size_t TokenHistory::bytes() const {
  return prompt_.capacity() * sizeof(uint64_t) + generated_.capacity() * sizeof(Generated) +
         table_.capacity() * sizeof(int32_t);
}

uint32_t TokenHistory::index_of(int32_t id) const {
  // Fibonacci hashing: the product's high bits.
  const int bits = std::countr_zero(table_.size());
  const uint32_t mask = static_cast<uint32_t>(table_.size() - 1);
  uint32_t at = (static_cast<uint32_t>(id) * 0x9E3779B1u) >> (32 - bits);
  while (table_[at] >= 0 && generated_[static_cast<size_t>(table_[at])].id != id)
    at = (at + 1) & mask;
  return at;
}

void TokenHistory::grow() {
  table_.assign(std::max<size_t>(16, 2 * table_.size()), -1);
  for (size_t i = 0; i < generated_.size(); ++i) {
    table_[index_of(generated_[i].id)] = static_cast<int32_t>(i);
  }
}

}  // namespace recurve
