#pragma once
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/state_keys.h"
#include "server/storage/file_system.h"

namespace recurve {

// The whole of a file. Throws std::system_error.
std::string read_all(FileSystem& folder, const std::string& name);
// Replaces the file as a whole: after a loss of power the old one is there, or the new one.
void replace_file(FileSystem& folder, const std::string& name, std::string_view text);

// The keys of tenants' states that lie in a folder: see state_keys.h. A tenant's is made when its
// first state is written. They are read whenever they are used: who takes a file away from a server
// that runs has taken the key, and who puts it back has given it back. Thread-safe.
class TenantKeys {
 public:
  // Reads the operator's keys from the file at `keys_path`, and wraps with the first of them what
  // another one opens. What cannot be opened is told of in the log, and its tenant gets a new key.
  TenantKeys(FileSystem& folder, std::string keys_path);

  // For what is written of that tenant from now on. Throws std::runtime_error where there is none
  // and none can be made.
  TenantKey for_writing(std::string_view tenant);
  // Throws KeyMissing with a sentence that names tenant and file.
  SecretKey for_reading(const std::string& id, std::string_view tenant);

 private:
  OpenedTenantKey read(std::string_view id);
  TenantKey make(std::string_view tenant);

  FileSystem& folder_;
  const std::string keys_path_;
  std::mutex mutex_;                                     // of all below
  std::vector<SecretKey> keys_;                          // the operator's
  std::map<std::string, std::string, std::less<>> ids_;  // of the key for writing, by tenant
};

}  // namespace recurve
