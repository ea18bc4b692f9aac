#include "server/session/token_log.h"

#include <algorithm>
#include <atomic>
#include <random>
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

TokenLog::Entry entry_of(uint32_t word) {
  return {static_cast<int32_t>(word >> 2), static_cast<TokenLog::Form>(word & 3)};
}

}  // namespace

TokenLog TokenLog::continued(int64_t most, int64_t begin, uint64_t first_digest,
                             std::span<const uint32_t> words) {
  TokenLog log(most);
  log.origin_ = log.begin_ = log.end_ = begin;
  log.first_digest_ = log.digest_ = first_digest;
  for (const uint32_t word : words) log.add(entry_of(word).id, entry_of(word).form);
  return log;
}

// Digests are stored, so that those of another process must differ, too.
TokenLog TokenLog::unknown(int64_t most, int64_t position) {
  static std::atomic<uint64_t> count = uint64_t{std::random_device()()} << 32;
  TokenLog log(most);
  log.origin_ = log.begin_ = log.end_ = position;
  if (position > 0) log.first_digest_ = log.digest_ = mix(0x756e6b6e6f776e00u, ++count);
  return log;
}

TokenLog TokenLog::stored(int64_t most, int64_t begin, int64_t end, uint64_t first_digest,
                          uint64_t digest) {
  CHECK(begin >= 0 && begin <= end && end - begin <= most);
  TokenLog log(most);
  log.origin_ = log.begin_ = begin;
  log.end_ = end;
  log.first_digest_ = first_digest;
  log.digest_ = digest;
  return log;
}

bool TokenLog::load(std::span<const uint32_t> words) {
  uint64_t digest = first_digest_;
  for (const uint32_t word : words) digest = mix(digest, word);
  if (words.size() != static_cast<size_t>(end_ - begin_) || digest != digest_) return false;
  origin_ = begin_;
  entries_ = std::make_shared<Entries>(words.begin(), words.end());
  return true;
}

void TokenLog::add(int32_t id, Form form) {
  CHECK(id >= 0 && id < 1 << 30 && is_loaded());
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
  return entry_of(entry(position));
}

std::vector<uint32_t> TokenLog::words(int64_t from, int64_t to) const {
  CHECK(from >= begin_ && from <= to && to <= end_ && is_loaded());
  std::vector<uint32_t> words;
  words.reserve(static_cast<size_t>(to - from));
  for (int64_t p = from; p < to; ++p) words.push_back(entry(p));
  return words;
}

TokenLog TokenLog::until(int64_t position) const {
  CHECK(position >= begin_ && position <= end_);
  TokenLog first = *this;
  first.end_ = position;
  first.digest_ = next_digest(first_digest_, begin_, position);
  return first;
}

uint64_t TokenLog::next_digest(uint64_t digest, int64_t from, int64_t to) const {
  CHECK(from >= begin_ && to <= end_ && is_loaded());
  for (int64_t p = from; p < to; ++p) digest = mix(digest, entry(p));
  return digest;
}

}  // namespace recurve
