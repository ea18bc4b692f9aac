#include "server/prefix/stored_prefixes.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace recurve {
namespace {

constexpr TenantId kAll = 0;  // pages are not counted by tenant

PrefixHash hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

bool parse_half(std::string_view digits, uint64_t* value) {
  const char* end = digits.data() + digits.size();
  const auto [after, error] = std::from_chars(digits.data(), end, *value, 16);
  return error == std::errc() && after == end;
}

}  // namespace

std::string PrefixHash::text() const { return fmt::format("{:016x}{:016x}", high, low); }

bool PrefixHash::parse(std::string_view text, PrefixHash* hash) {
  return text.size() == 32 && parse_half(text.substr(0, 16), &hash->high) &&
         parse_half(text.substr(16), &hash->low);
}

// Each is of the one before it and of the chunk's ids; the first one is of identity and adapter.
std::vector<PrefixHash> StoredPrefixes::hashes_of(std::span<const int32_t> ids,
                                                  std::string_view adapter) const {
  const auto chunk = static_cast<size_t>(chunk_);
  std::vector<std::byte> bytes(sizeof(PrefixHash) + chunk * sizeof(int32_t));
  const std::string first = identity_ + std::string(adapter);
  PrefixHash hash = hash_of(std::as_bytes(std::span(first)));
  std::vector<PrefixHash> hashes;
  hashes.reserve(ids.size() / chunk);
  for (; ids.size() >= chunk; ids = ids.subspan(chunk)) {
    std::memcpy(bytes.data(), &hash, sizeof hash);
    std::memcpy(bytes.data() + sizeof hash, ids.data(), chunk * sizeof(int32_t));
    hashes.push_back(hash = hash_of(bytes));
  }
  return hashes;
}

StoredPrefixes::Found StoredPrefixes::longest(std::string_view tenant,
                                              std::span<const PrefixHash> hashes) const {
  for (size_t chunks = hashes.size(); chunks > 0 && !empty(); --chunks) {
    const auto found = entries_.find({tenant, hashes[chunks - 1]});
    if (found == entries_.end() || found->second.state == nullptr) continue;
    return {found->second.state, hashes[chunks - 1], static_cast<int64_t>(chunks) * chunk_};
  }
  return {};
}

int64_t StoredPrefixes::longest_known(std::string_view tenant,
                                      std::span<const PrefixHash> hashes) const {
  for (size_t chunks = hashes.size(); chunks > 0 && !empty(); --chunks) {
    if (entries_.contains({tenant, hashes[chunks - 1]})) {
      return static_cast<int64_t>(chunks) * chunk_;
    }
  }
  return 0;
}

bool StoredPrefixes::has(const Key& key) const {
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second.state != nullptr;
}

bool StoredPrefixes::use(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.state == nullptr) return false;
  take_out(*found);
  ++found->second.hits;
  put_in(*found);
  return true;
}

void StoredPrefixes::put(const Key& key, Entry entry) {
  auto& place = *entries_.try_emplace(key).first;
  const uint64_t before = std::exchange(place.second.last_group, 0);
  if (place.second.state != nullptr) take_out(place);
  static_cast<Entry&>(place.second) = std::move(entry);
  put_in(place);
  if (store_ != nullptr) {
    const StateStore::Pages last = store_->pages_of(*place.second.state);
    pages_.add(*store_, kAll, last);
    place.second.last_group = last.id;
  }
  pages_.remove(kAll, before);
}

void StoredPrefixes::cannot_be_read(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.state == nullptr) return;
  take_out(*found);
  pages_.remove(kAll, std::exchange(found->second.last_group, 0));
  found->second.state.reset();
}

void StoredPrefixes::take_out(Entries::value_type& entry) {
  by_value_.erase(place_of(entry));
  bytes_ -= entry.second.bytes;
}

void StoredPrefixes::put_in(Entries::value_type& entry) {
  Valued& of = entry.second;
  of.value = of.usable ? clock_ + worth_of(of.gain, of.hits) : -1;
  by_value_.insert(place_of(entry));
  bytes_ += of.bytes;
}

double StoredPrefixes::least_worth() const {
  return by_value_.empty() ? 0 : std::get<double>(*by_value_.begin()) - clock_;
}

std::vector<StoredPrefixes::Key> StoredPrefixes::trim(int64_t most_states, int64_t most_bytes) {
  std::vector<Key> gone;
  while (!by_value_.empty() && (states() > most_states || bytes() > most_bytes)) {
    const auto [value, id, key] = *by_value_.begin();
    clock_ = std::max(clock_, value);
    gone.push_back(*key);
    const auto found = entries_.find(gone.back());
    take_out(*found);
    pages_.remove(kAll, found->second.last_group);
    entries_.erase(found);
  }
  return gone;
}

// A node, its share of the buckets, and its place by value; the handle; and of the store a place
// and a record, whose key and text are about so long.
int64_t StoredPrefixes::entry_bytes() {
  constexpr int64_t kHeap = 16, kPointers = 4 * sizeof(void*), kRecordText = 200;
  return static_cast<int64_t>(sizeof(Entries::value_type) + sizeof(ByValue::value_type) +
                              sizeof(StoredState)) +
         5 * (kHeap + kPointers) + kRecordText + 64;
}

}  // namespace recurve
