#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/cipher.h"

namespace recurve {

// Keys of what a server keeps in --state-dir. The operator's keys are in a file of their own
// (--state-keys) and encrypt no state: they wrap the keys that do, which lie in the folder. So an
// operator's key is replaced by wrapping those anew, and no state is touched.
//
//   state-key       the folder's key, of what is no tenant's: 8 bytes "RCRVCRPT"; 16, salt; 48, the
//                   key, sealed as number 0 with derived_key() of the operator's and the salt
//   tenant-key-ID   the key of one tenant's states: 8 bytes "RCRVTKEY"; 8, the id of the operator's
//                   key, state_key_id() in binary; 16, salt; the rest, sealed likewise: 32 bytes,
//                   the key; 8, ID in binary; the tenant's name
//
// Which tenants there are cannot be seen without an operator's key. A tenant may have several keys:
// without the file of one, what it has sealed cannot be read, and all else can.

inline constexpr std::string_view kFolderKeyFile = "state-key", kTenantKeyFile = "tenant-key-";

// 16 hexadecimal digits by which a key may be shown, which tell nothing of it.
std::string state_key_id(const SecretKey& key);

// The file of an operator: 64 hexadecimal digits a line, as `openssl rand -hex 32` writes them, the
// key that is used from now on first; the others open what was wrapped with them. Throws
// std::runtime_error with a sentence that says what is wrong and shows no key.
std::vector<SecretKey> parse_state_keys(std::string_view text);
// The same of the file of that name, which the sentence names.
std::vector<SecretKey> read_state_keys(const std::string& path);
std::string to_text(std::span<const SecretKey> keys);

std::string wrap_folder_key(const SecretKey& key, const SecretKey& with);
// The key, and which of `keys` opened it. Nothing where none does.
struct OpenedFolderKey {
  SecretKey key;
  size_t opened_by = 0;
};
std::optional<OpenedFolderKey> unwrap_folder_key(std::string_view wrapped,
                                                 std::span<const SecretKey> keys);

struct TenantKey {
  std::string id;  // 16 hexadecimal digits
  std::string tenant;
  SecretKey key;
};
TenantKey make_tenant_key(std::string_view tenant);
std::string file_of_tenant_key(std::string_view id);
// The ID of a file's name; empty: it is no file of a tenant's key.
std::string_view tenant_key_of_file(std::string_view name);

std::string wrap_tenant_key(const TenantKey& key, const SecretKey& with);
// The id of the operator's key that opens it; empty: this is no wrapped key of a tenant.
std::string wrapped_with(std::string_view wrapped);
// What the file of that ID has. Throws std::runtime_error with a sentence that names the file: it
// is no such file, or was changed, or is another's, or the operator's key that it needs is not
// there.
struct OpenedTenantKey {
  TenantKey key;
  size_t opened_by = 0;
};
OpenedTenantKey unwrap_tenant_key(std::string_view wrapped, std::string_view id,
                                  std::span<const SecretKey> keys);

}  // namespace recurve
