#include "server/object_store/store_seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/identity/hex.h"

namespace recurve {
namespace {

constexpr std::string_view kSealMagic = "RCRVSEA1";
constexpr size_t kIdDigits = 16, kHeadBytes = kSealMagic.size() + kIdDigits + kSaltBytes;
constexpr size_t kPiece = size_t{1} << 20;
constexpr size_t kMostKeyBytes = 4096;  // of a tenant's key, wrapped

std::string key_object(std::string_view tenant) { return fmt::format("keys/t-{}", tenant); }

// A whole number of pieces has an empty one at its end.
size_t pieces_of(uint64_t bytes) { return bytes / kPiece + 1; }

uint64_t number_of_piece(size_t piece, bool is_last) {
  return 2 * uint64_t{piece} + (is_last ? 1 : 0);
}

}  // namespace

StoreSeal::StoreSeal(ObjectStore& store, const std::string& keys_path)
    : store_(store), keys_(read_state_keys(keys_path)) {}

bool StoreSeal::is_sealed(std::string_view bytes) { return bytes.starts_with(kSealMagic); }

uint64_t StoreSeal::sealed_bytes(uint64_t bytes) {
  return kHeadBytes + bytes + pieces_of(bytes) * kTagBytes;
}

std::string StoreSeal::seal(const std::string& tenant, const std::string& context,
                            std::span<const std::string_view> parts) {
  const TenantKey key = key_of(tenant, /*creates=*/true);
  uint64_t bytes = 0;
  for (const std::string_view part : parts) bytes += part.size();
  const std::string salt = random_bytes(kSaltBytes);
  Cipher cipher(derived_key(key.key, salt + context));
  std::string sealed;
  sealed.reserve(sealed_bytes(bytes));
  sealed.append(kSealMagic).append(key.id).append(salt);
  std::string piece;
  piece.reserve(std::min<uint64_t>(bytes, kPiece));
  size_t count = 0;
  for (std::string_view part : parts) {
    while (!part.empty()) {
      const std::string_view more = part.substr(0, kPiece - piece.size());
      piece.append(more);
      part.remove_prefix(more.size());
      if (piece.size() < kPiece) break;
      sealed += cipher.seal(number_of_piece(count++, false), piece);
      piece.clear();
    }
  }
  sealed += cipher.seal(number_of_piece(count, true), piece);
  return sealed;
}

std::string StoreSeal::open(const std::string& tenant, const std::string& context,
                            std::string_view sealed) {
  if (!is_sealed(sealed)) {
    throw SealError(SealError::Why::kKey,
                    "it is not sealed, and this server has --state-keys: export it from a server "
                    "without them, and import it here");
  }
  if (sealed.size() < kHeadBytes + kTagBytes)
    throw SealError(SealError::Why::kDamage, "it was cut off");
  const TenantKey key = key_of(tenant, /*creates=*/false);
  const std::string_view id = sealed.substr(kSealMagic.size(), kIdDigits);
  if (id != key.id) {
    throw SealError(SealError::Why::kKey,
                    fmt::format("it is sealed with the key {} of tenant \"{}\", and the store has "
                                "the key {}: restore {}",
                                is_hex(id) ? id : "?", tenant, key.id, key_object(tenant)));
  }
  const std::string_view salt = sealed.substr(kSealMagic.size() + kIdDigits, kSaltBytes);
  Cipher cipher(derived_key(key.key, std::string(salt) + context));
  sealed.remove_prefix(kHeadBytes);
  std::string text, piece;
  text.reserve(sealed.size());
  for (size_t count = 0;; ++count) {
    const std::string_view next = sealed.substr(0, kPiece + kTagBytes);
    const bool is_last = next.size() < kPiece + kTagBytes;
    if (!cipher.open(number_of_piece(count, is_last), next, &piece)) {
      throw SealError(SealError::Why::kDamage,
                      "it was changed, cut off, or is that of something else");
    }
    text += piece;
    if (is_last) return text;
    sealed.remove_prefix(next.size());
  }
}

TenantKey StoreSeal::key_of(const std::string& tenant, bool creates) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = tenants_.find(tenant); found != tenants_.end()) return found->second;
  }
  TenantKey key = read_key(tenant, creates);
  const std::lock_guard lock(mutex_);
  return tenants_.emplace(tenant, std::move(key)).first->second;
}

// Of several servers that create one, the first one's is the tenant's.
TenantKey StoreSeal::read_key(const std::string& tenant, bool creates) {
  const std::string object = key_object(tenant);
  ObjectResult found = store_.get(object, kMostKeyBytes);
  if (found.outcome == ObjectResult::Outcome::kMissing && creates) {
    const TenantKey made = make_tenant_key(tenant);
    const std::string text = made.id + wrap_tenant_key(made, keys_.front());
    const std::string_view parts[] = {text};
    if (store_.put(object, parts, ObjectCondition::is_new()).done()) return made;
    found = store_.get(object, kMostKeyBytes);
  }
  if (found.outcome == ObjectResult::Outcome::kMissing) {
    throw SealError(SealError::Why::kKey,
                    fmt::format("the key of tenant \"{}\" is missing: restore {} in the store",
                                tenant, object));
  }
  if (!found.done()) throw SealError(SealError::Why::kStore, found.error);
  return unwrap(tenant, found);
}

TenantKey StoreSeal::unwrap(const std::string& tenant, const ObjectResult& found) {
  const std::string_view text = found.body, id = text.substr(0, std::min(kIdDigits, text.size()));
  OpenedTenantKey opened;
  try {
    if (id.size() != kIdDigits || !is_hex(id)) throw std::runtime_error("it is no key");
    opened = unwrap_tenant_key(text.substr(kIdDigits), id, keys_);
  } catch (const std::runtime_error& error) {
    throw SealError(SealError::Why::kKey,
                    fmt::format("{} in the store: {}", key_object(tenant), error.what()));
  }
  if (opened.key.tenant != tenant) {
    throw SealError(SealError::Why::kKey,
                    fmt::format("{} in the store is the key of tenant \"{}\": restore it",
                                key_object(tenant), opened.key.tenant));
  }
  if (opened.opened_by > 0) {
    const std::string again = opened.key.id + wrap_tenant_key(opened.key, keys_.front());
    const std::string_view parts[] = {again};
    store_.put(key_object(tenant), parts, ObjectCondition::matches(found.etag));
  }
  return std::move(opened.key);
}

}  // namespace recurve
