#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "server/object_store/object_store.h"

namespace recurve {

// Keys of states of prompts that servers share: prefixes/IDENTITY/t-TENANT/HASH, where IDENTITY is
// 16 hexadecimal digits of what decides over the bits of states, TENANT is empty for states that
// are anybody's, and HASH is 32 hexadecimal digits of the ids that the state has absorbed.
inline constexpr std::string_view kPrefixFolder = "prefixes/";
inline constexpr size_t kPrefixIdentityDigits = 16, kPrefixHashDigits = 32;

inline std::string prefix_folder(std::string_view identity) {
  return fmt::format("{}{}/", kPrefixFolder, identity);
}
inline std::string prefix_key(std::string_view identity, std::string_view tenant,
                              std::string_view hash) {
  return fmt::format("{}{}/t-{}/{}", kPrefixFolder, identity, tenant, hash);
}

struct PrefixKeyParts {
  std::string_view identity = {}, tenant = {}, hash = {};
};
// False if no server can have written the key.
inline bool parse_prefix_key(std::string_view key, PrefixKeyParts* parts) {
  const auto is_hex = [](std::string_view text, size_t digits) {
    return text.size() == digits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  };
  if (!ObjectStore::is_key(key) || !key.starts_with(kPrefixFolder)) return false;
  key.remove_prefix(kPrefixFolder.size());
  parts->identity = key.substr(0, key.find('/'));
  key.remove_prefix(std::min(parts->identity.size() + 1, key.size()));
  if (!key.starts_with("t-")) return false;
  key.remove_prefix(2);
  parts->tenant = key.substr(0, key.find('/'));
  parts->hash = key.substr(std::min(parts->tenant.size() + 1, key.size()));
  return is_hex(parts->identity, kPrefixIdentityDigits) && is_hex(parts->hash, kPrefixHashDigits);
}

}  // namespace recurve
