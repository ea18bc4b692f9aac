#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/identity/state_keys.h"
#include "server/object_store/object_store.h"

namespace recurve {

// Something cannot be sealed or opened: a sentence.
class SealError : public std::runtime_error {
 public:
  enum class Why {
    kKey,     // its key is missing, or it has none
    kDamage,  // it was changed, or belongs to something else
    kStore,   // the store does not answer
  };
  SealError(Why why, const std::string& what) : std::runtime_error(what), why_(why) {}
  Why why() const { return why_; }

 private:
  Why why_;
};

// Seals what a store has of tenants' sessions, with a key of each tenant that is in the store too:
//
//   keys/t-TENANT   the ID of the key, 16 hexadecimal digits, and the key, wrapped with an
//                   operator's key: what the file tenant-key-ID of --state-dir has (state_keys.h)
//
// Without that object the tenant's states cannot be read. It is read once by each process. A key
// that is wrapped with a later key of the operator's file is wrapped again with the first one.
//
// What is sealed is
//
//   8 bytes  "RCRVSEA1"
//   16       the ID of the tenant's key
//   16       salt; the key of what follows is derived_key() of the tenant's key with the salt and
//            the context, which says what is sealed: what is found in the place of something else
//            does not open
//   pieces   of 1 MiB, the last one of less, each followed by its tag; sealed as numbers 0, 2, 4
//            ..., and the last one with one more, so that it is missed if it was cut off
//
// Calls block. Any thread.
class StoreSeal {
 public:
  // keys_path: the file of --state-keys. Throws std::runtime_error with a sentence.
  StoreSeal(ObjectStore& store, const std::string& keys_path);

  static bool is_sealed(std::string_view bytes);
  static uint64_t sealed_bytes(uint64_t bytes);

  // All throw SealError.
  // Creates the tenant's key if there is none, and reads it: seal() and open() ask the store no
  // more.
  void prepare(const std::string& tenant) { key_of(tenant, /*creates=*/true); }
  std::string seal(const std::string& tenant, const std::string& context,
                   std::span<const std::string_view> parts);
  std::string open(const std::string& tenant, const std::string& context, std::string_view sealed);

 private:
  // creates: the tenant gets a key if it has none.
  TenantKey key_of(const std::string& tenant, bool creates);
  TenantKey read_key(const std::string& tenant, bool creates);
  TenantKey unwrap(const std::string& tenant, const ObjectResult& found);

  ObjectStore& store_;
  const std::vector<SecretKey> keys_;  // the operator's
  std::mutex mutex_;                   // guards the tenants' keys
  std::map<std::string, TenantKey> tenants_;
};

}  // namespace recurve
