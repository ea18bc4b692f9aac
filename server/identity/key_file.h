#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

using KeyHash = std::array<uint8_t, 32>;  // SHA-256
using KeyTime = std::chrono::sys_seconds;

// A key as its holder has it: "rck_ID_SECRET". The id is 12 hexadecimal digits, which may be shown;
// the secret is 256 random bits in URL-safe base64, so that a plain hash of the key tells nothing.
std::string_view key_id_of(std::string_view key);  // empty: this is no key
KeyHash hash_of(std::string_view key);

// What a file of keys says, in JSON:
//
//   {"tenants": {NAME: {"weight": 2, "slots": 4, "waiting": 64, "sessions": 100, "priority": 0,
//                       "choices": 4, "prompt_tokens": 8192, "tokens_per_minute": 60000,
//                       "host_bytes": 1000000000, "disk_bytes": 10000000000}},
//    "keys": [{"id": ID, "tenant": NAME, "role": "user", "sha256": HEX, "expires": TIME}],
//    "certificates": [{"subject": "CN=me,O=we", "tenant": NAME, "role": "user"}],
//    "issuers": [{"issuer": "https://login.example", "audience": "recurve", "jwks": "login.json",
//                 "tenant_claim": "sub", "role": "user"}]}
//
// All four may be missing, as may "role" (user) and "expires" (never), each limit and each tenant:
// see TenantLimits. TIME is "2026-12-31T23:59:59Z". A subject is as RFC 2253 writes it, the most
// particular part first. An issuer's tokens (RFC 7519) are taken that have its "issuer" as "iss"
// and "audience" among "aud"; its public keys (RFC 7517) are in the file "jwks" of the same folder;
// all tokens are the tenant's of the name "tenant", or each is of whom its claim "tenant_claim"
// names. A field of any other name is an error.
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
  std::vector<Key> keys;
  std::vector<Certificate> certificates;
  std::vector<Issuer> issuers;
};

// Throws std::runtime_error with a sentence that names what is wrong.
KeyFile parse_key_file(std::string_view text);
std::string to_text(const KeyFile& file);

// A key that is nobody's yet.
struct NewKey {
  std::string id, key;
};
NewKey make_key();  // throws std::runtime_error where the system has no random numbers

// 1 to 64 ASCII letters, digits, '-', '_' and '.'; and the sentence that says so.
bool is_tenant_name(std::string_view name);
std::string tenant_name_rule(std::string_view name);

// "user", "observer", "admin"; nothing for any other name.
std::optional<Role> role_named(std::string_view name);
std::string_view name_of(Role role);
// "2026-12-31T23:59:59Z"; nothing for any other form.
std::optional<KeyTime> time_from(const std::string& text);
std::string to_text(KeyTime time);

}  // namespace recurve
