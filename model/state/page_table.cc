#include "model/state/page_table.h"

#include <algorithm>

#include "kernels/check.h"

namespace recurve {

PageTable::PageTable(int slots, int32_t pages, int32_t most)
    : most_(most),
      slots_(static_cast<size_t>(slots) + 1),
      references_(static_cast<size_t>(pages) + 1),
      changed_(static_cast<size_t>(slots) + 1) {
  free_.reserve(static_cast<size_t>(pages));
  for (int32_t page = pages; page > 0; --page) free_.push_back(page);
}

void PageTable::note(int32_t slot) { changed_[static_cast<size_t>(slot)] = true; }

bool PageTable::grow(int32_t slot, int32_t count) {
  CHECK(slot > 0 && count <= most_);
  auto& pages = slots_[static_cast<size_t>(slot)];
  const auto has = static_cast<int32_t>(pages.size());
  if (count <= has) return true;
  if (count - has > free_pages()) return false;
  pages.reserve(static_cast<size_t>(count));
  for (int32_t i = has; i < count; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
    references_[static_cast<size_t>(pages.back())] = 1;
  }
  note(slot);
  return true;
}

void PageTable::share(int32_t from, int32_t to, int32_t count) {
  const auto& source = slots_[static_cast<size_t>(from)];
  auto& target = slots_[static_cast<size_t>(to)];
  CHECK(target.empty() && count <= static_cast<int32_t>(source.size()));
  target.assign(source.begin(), source.begin() + count);
  for (const int32_t page : target) ++references_[static_cast<size_t>(page)];
  note(to);
}

void PageTable::shrink(int32_t slot, int32_t count) {
  auto& pages = slots_[static_cast<size_t>(slot)];
  if (static_cast<int32_t>(pages.size()) <= count) return;
  for (size_t i = static_cast<size_t>(count); i < pages.size(); ++i) release(pages[i]);
  pages.resize(static_cast<size_t>(count));
  note(slot);
}

PageTable::Own PageTable::own(int32_t slot, int32_t index) {
  int32_t& page = slots_[static_cast<size_t>(slot)][static_cast<size_t>(index)];
  if (!shared(page)) return {};
  if (free_.empty()) return {.done = false};
  const Own own{.from = page, .to = free_.back()};
  free_.pop_back();
  references_[static_cast<size_t>(own.to)] = 1;
  release(page);
  page = own.to;
  note(slot);
  return own;
}

void PageTable::release(int32_t page) {
  uint32_t& references = references_[static_cast<size_t>(page)];
  CHECK(references > 0);
  if (--references > 0) return;
  if (held_until_ == 0) return free_.push_back(page);
  held_.push_back({held_until_, page});
}

void PageTable::reclaim(const std::function<bool(uint64_t ticket)>& done) {
  while (!held_.empty() && done(held_.front().ticket)) {
    free_.push_back(held_.front().page);
    held_.pop_front();
  }
}

std::vector<int32_t> PageTable::changed() const {
  std::vector<int32_t> slots;
  for (size_t slot = 0; slot < changed_.size(); ++slot) {
    if (changed_[slot]) slots.push_back(static_cast<int32_t>(slot));
  }
  return slots;
}

std::vector<int32_t> PageTable::take_changed() {
  std::vector<int32_t> slots = changed();
  changed_.assign(changed_.size(), false);
  return slots;
}

}  // namespace recurve
