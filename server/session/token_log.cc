#include "server/session/token_log.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

constexpr size_t kFirstCapacity = 64;

uint64_t mix(uint64_t digest, uint64_t value) {  // the end of MurmurHash3
  uint64_t hash = (digest ^ value) * 0xff51afd7ed558ccdu;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53u;
  return hash ^ (hash >> 33) ^ 1;
}

}  // namespace

TokenLog TokenLog::unknown(int64_t most, int64_t position) {
  static std::atomic<uint64_t> count = 0;
  TokenLog log(most);
  log.origin_ = log.begin_ = log.end_ = position;
  if (position > 0) log.first_digest_ = log.digest_ = mix(0x756e6b6e6f776e00u, ++count);
  return log;
}

void TokenLog::add(int32_t id, Form form) {
  CHECK(id >= 0 && id < 1 << 30);
  if (most_ == 0) {
    begin_ = ++end_;
    return;
  }
  own_entries();
  const uint32_t added = static_cast<uint32_t>(id) << 2 | static_cast<uint32_t>(form);
  const size_t index = index_of(end_);
  if (end_ - begin_ == most_) first_digest_ = mix(first_digest_, entry(begin_++));
  if (index == entries_->size()) {
    entries_->push_back(added);
  } else {
    (*entries_)[index] = added;
  }
  digest_ = mix(digest_, added);
  ++end_;
}

// With capacity for one more.
void TokenLog::own_entries() {
  const size_t size = entries_ ? entries_->size() : 0;
  const bool is_full =
      !entries_ || (size == entries_->capacity() && size < static_cast<size_t>(most_));
  if (!is_full && entries_.use_count() == 1) return;
  auto own = std::make_shared<Entries>();
  own->reserve(std::min(std::max(kFirstCapacity, 2 * size), static_cast<size_t>(most_)));
  if (entries_) own->assign(entries_->begin(), entries_->end());
  entries_ = std::move(own);
}

TokenLog::Entry TokenLog::at(int64_t position) const {
  CHECK(position >= begin_ && position < end_);
  const uint32_t found = entry(position);
  return {static_cast<int32_t>(found >> 2), static_cast<Form>(found & 3)};
}

TokenLog TokenLog::until(int64_t position) const {
  CHECK(position >= begin_ && position <= end_);
  TokenLog first = *this;
  first.end_ = position;
  first.digest_ = next_digest(first_digest_, begin_, position);
  return first;
}

uint64_t TokenLog::next_digest(uint64_t digest, int64_t from, int64_t to) const {
  CHECK(from >= begin_ && to <= end_);
  for (int64_t p = from; p < to; ++p) digest = mix(digest, entry(p));
  return digest;
}

}  // namespace recurve
