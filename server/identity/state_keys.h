#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/cipher.h"

namespace recurve {

// Keys that encrypt --state-dir. The operator's keys, in the file of --state-keys, do not encrypt
// states but wrap the keys that do, which are in the folder. So replacing an operator's key means
// wrapping those again, without changing a state.
//
//   state-key       the folder's key, for data of no tenant: 8 bytes "RCRVCRPT"; 16, salt; 48, the
//                   key, sealed as number 0 with derived_key() of the operator's key and the salt
//   tenant-key-ID   the key of one tenant's states: 8 bytes "RCRVTKEY"; 8, the id of the operator's
//                   key, state_key_id() in binary; 16, salt; the rest, sealed in the same way: 32
//                   bytes, the key; 8, ID in binary; the tenant's name
//
// The tenants' names cannot be read without an operator's key. A tenant may have several keys:
// without the file of one, the data sealed with it cannot be read, and all other data can.

inline constexpr std::string_view kFolderKeyFile = "state-key", kTenantKeyFile = "tenant-key-";

// 16 hexadecimal digits that identify a key and do not reveal it.
std::string state_key_id(const SecretKey& key);

// The operator's file: 64 hexadecimal digits per line, as `openssl rand -hex 32` writes them. The
// first key wraps; all of them open. Throws std::runtime_error with a sentence that contains no
// key.
std::vector<SecretKey> parse_state_keys(std::string_view text);
// The same for a file, which the sentence names.
std::vector<SecretKey> read_state_keys(const std::string& path);
std::string to_text(std::span<const SecretKey> keys);

std::string wrap_folder_key(const SecretKey& key, const SecretKey& with);
struct OpenedFolderKey {
  SecretKey key;
  size_t opened_by = 0;  // index in `keys`
};
// Nothing if none of the keys opens it.
std::optional<OpenedFolderKey> unwrap_folder_key(std::string_view wrapped,
                                                 std::span<const SecretKey> keys);

struct TenantKey {
  std::string id;  // 16 hexadecimal digits
  std::string tenant;
  SecretKey key;
};
TenantKey make_tenant_key(std::string_view tenant);
std::string file_of_tenant_key(std::string_view id);
// The ID in a file's name; empty: not a tenant's key.
std::string_view tenant_key_of_file(std::string_view name);

std::string wrap_tenant_key(const TenantKey& key, const SecretKey& with);
// The id of the operator's key that opens it; empty: not a wrapped key of a tenant.
std::string wrapped_with(std::string_view wrapped);
struct OpenedTenantKey {
  TenantKey key;
  size_t opened_by = 0;
};
// Opens the content of the file with that ID. Throws std::runtime_error with a sentence that names
// the file: it is not a tenant's key, was modified, or has another ID, or the operator's key is
// missing.
OpenedTenantKey unwrap_tenant_key(std::string_view wrapped, std::string_view id,
                                  std::span<const SecretKey> keys);

}  // namespace recurve
