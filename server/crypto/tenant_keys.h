#pragma once
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/state_keys.h"
#include "server/storage/file_system.h"

namespace recurve {

// Reads a whole file. Throws std::system_error.
std::string read_all(FileSystem& folder, const std::string& name);
// Replaces the file atomically: after a power failure the old one or the new one is there.
void replace_file(FileSystem& folder, const std::string& name, std::string_view text);

// The tenants' keys in a folder: see state_keys.h. A tenant's key is created when its first state
// is written. Keys are read from their files at each use, so removing or restoring a file takes
// effect while the server runs. Thread-safe.
class TenantKeys {
 public:
  // Reads the operator's keys from the file at `keys_path`, and wraps again with the first one what
  // another one opens. Logs which key cannot be opened; its tenant gets a new one.
  TenantKeys(FileSystem& folder, std::string keys_path);

  // The key for new data of the tenant. Throws std::runtime_error if there is none and none can be
  // created.
  TenantKey for_writing(std::string_view tenant);
  // Throws KeyMissing with a sentence that names tenant and file.
  SecretKey for_reading(const std::string& id, std::string_view tenant);

 private:
  OpenedTenantKey read(std::string_view id);
  TenantKey create(std::string_view tenant);

  FileSystem& folder_;
  const std::string keys_path_;
  std::mutex mutex_;                                     // guards the members below
  std::vector<SecretKey> keys_;                          // the operator's
  std::map<std::string, std::string, std::less<>> ids_;  // of the keys for writing, by tenant
};

}  // namespace recurve
