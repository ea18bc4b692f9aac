#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

using KeyHash = std::array<uint8_t, 32>;  // SHA-256
using KeyTime = std::chrono::sys_seconds;

// A key is "rck_ID_SECRET". The id is 12 hexadecimal digits and not secret; the secret is 256
// random bits in URL-safe base64, so a hash without a salt does not reveal it.
std::string_view key_id_of(std::string_view key);  // empty: not a key
KeyHash hash_of(std::string_view key);

// Names of initial states and adapters.
struct BoundNames {
  using Names = std::set<std::string, std::less<>>;
  using Kind = Names BoundNames::*;

  Names initial_states = {}, adapters = {};
};

// A keys file, in JSON:
//
//   {"tenants": {NAME: {"weight": 2, "slots": 4, "waiting": 64, "sessions": 100, "priority": 0,
//                       "choices": 4, "prompt_tokens": 8192, "tokens_per_minute": 60000,
//                       "host_bytes": 1000000000, "page_bytes": 500000000,
//                       "disk_bytes": 10000000000, "store_bytes": 100000000000,
//                       "adapters": [NAME], "initial_states": [NAME]}},
//    "keys": [{"id": ID, "tenant": NAME, "role": "user", "sha256": HEX, "expires": TIME}],
//    "certificates": [{"subject": "CN=me,O=we", "tenant": NAME, "role": "user"}],
//    "issuers": [{"issuer": "https://login.example", "audience": "recurve", "jwks": "login.json",
//                 "tenant_claim": "sub", "role": "user"}]}
//
// All four are optional, as are "role" (user), "expires" (never), each limit and each tenant: see
// TenantLimits. An adapter or initial state that some tenant lists, of whatever model, is for the
// tenants that list it; others are for all. TIME is "2026-12-31T23:59:59Z". A subject has the form
// of RFC 2253, the most specific part first. A token of an issuer (RFC 7519) must have "issuer" as
// "iss" and "audience" in "aud"; the issuer's public keys (RFC 7517) are in the file "jwks" of the
// same folder. Tokens belong to the tenant "tenant", or each to the tenant that its claim
// "tenant_claim" names. Other fields are errors.
struct KeyFile {
  struct Key {
    std::string id;
    std::string tenant;
    Role role = Role::kUser;
    KeyHash hash = {};
    std::optional<KeyTime> expires = {};
  };
  struct Certificate {
    std::string subject;
    std::string tenant;
    Role role = Role::kUser;
  };
  struct Issuer {
    std::string issuer, audience;
    std::string jwks;                  // a file's name
    std::string tenant, tenant_claim;  // one of them is empty
    Role role = Role::kUser;
  };
  std::map<std::string, TenantLimits> tenants;
  std::map<std::string, BoundNames, std::less<>> listed;  // by tenant, each of which `tenants` has
  std::vector<Key> keys;
  std::vector<Certificate> certificates;
  std::vector<Issuer> issuers;
};

// Throws std::runtime_error with a sentence.
KeyFile parse_key_file(std::string_view text);
std::string to_text(const KeyFile& file);

struct NewKey {
  std::string id, key;
};
NewKey make_key();  // throws std::runtime_error

// 1 to 64 ASCII letters, digits, '-', '_' and '.'; and the error for another name.
bool is_tenant_name(std::string_view name);
std::string tenant_name_rule(std::string_view name);

// "user", "observer", "admin".
std::optional<Role> role_named(std::string_view name);
std::string_view name_of(Role role);
// "2026-12-31T23:59:59Z".
std::optional<KeyTime> time_from(const std::string& text);
std::string to_text(KeyTime time);

// Throws std::runtime_error with a sentence that names the file.
KeyFile read_key_file(const std::string& path);

// These change a keys file atomically: a reader finds the old one or the new one, and concurrent
// processes wait for each other. A new file is readable by its owner only. They throw
// std::runtime_error.
//
// Adds a key and returns it; the file has only its hash. Creates the file if it is missing.
std::string add_key(const std::string& path, const std::string& tenant, Role role,
                    std::optional<KeyTime> expires);
// False: there is no key with that id.
bool remove_key(const std::string& path, const std::string& id);

}  // namespace recurve
