#include "server/crypto/encrypted_folder.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "server/crypto/encrypted_file.h"
#include "server/identity/atomic_file.h"
#include "server/observe/log.h"
#include "server/storage/file_names.h"

namespace recurve {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Whether a store has written the file. The folder has a lock too, and may have foreign files.
bool is_store_file(const FileSystem::Entry& entry) {
  std::string_view name = entry.name;
  if (name.starts_with(kSetAside)) name.remove_prefix(kSetAside.size());
  if (name.ends_with(kIncomplete)) name.remove_suffix(kIncomplete.size());
  return number_of(name, kJournalFile) > 0 || number_of(name, kJournalCopy) > 0 ||
         number_of(name, kSegmentFile) > 0 || number_of(name, kStateFile) > 0;
}

bool is_key_file(const FileSystem::Entry& entry) {
  return entry.name.starts_with(kFolderKeyFile) || entry.name.starts_with(kTenantKeyFile);
}

class EncryptedFolder final : public FileSystem {
 public:
  EncryptedFolder(std::unique_ptr<FileSystem> folder, const SecretKey& key,
                  const std::string& keys_path)
      : folder_(std::move(folder)), tenants_(*folder_, keys_path), key_(key) {}
  ~EncryptedFolder() override { OPENSSL_cleanse(key_.data(), key_.size()); }

  std::vector<Entry> list() override {
    std::vector<Entry> found = folder_->list();
    std::erase_if(found, is_key_file);
    for (Entry& entry : found) {
      if (!is_store_file(entry)) continue;
      try {
        entry.bytes = open(entry.name)->bytes();
      } catch (const std::system_error&) {  // open() by a reader reports it
      }
    }
    return found;
  }
  std::unique_ptr<Writer> create(const std::string& name) override {
    return encrypt_writer(folder_->create(name), key_, tenants_);
  }
  void prepare_for(std::string_view tenant) override {
    if (!tenant.empty()) tenants_.for_writing(tenant);
  }
  std::unique_ptr<Reader> open(const std::string& name) override {
    return decrypt_reader(folder_->open(name), key_, tenants_);
  }
  void rename(const std::string& from, const std::string& to) override {
    folder_->rename(from, to);
  }
  void remove(const std::string& name) override { folder_->remove(name); }
  void sync_folder() override { folder_->sync_folder(); }
  std::string lost() override { return folder_->lost(); }

 private:
  const std::unique_ptr<FileSystem> folder_;
  TenantKeys tenants_;
  SecretKey key_;
};

bool has(const std::vector<FileSystem::Entry>& files, std::string_view name) {
  return std::ranges::find(files, name, &FileSystem::Entry::name) != files.end();
}

void write_folder_key(FileSystem& folder, const SecretKey& key, const SecretKey& with) {
  replace_file(folder, std::string(kFolderKeyFile), wrap_folder_key(key, with));
}

SecretKey open_folder_key(FileSystem& folder, const std::vector<SecretKey>& keys) {
  const auto opened = unwrap_folder_key(read_all(folder, std::string(kFolderKeyFile)), keys);
  if (!opened) {
    fail(
        "no key in --state-keys decrypts --state-dir: add the key that it was written with after "
        "the first one");
  }
  if (opened->opened_by == 0) return opened->key;
  try {
    write_folder_key(folder, opened->key, keys.front());
  } catch (const std::system_error& error) {  // the previous wrapping remains valid
    log_event(LogLevel::kWarning, "state_key_not_wrapped_anew", {{"why", error.what()}});
  }
  return opened->key;
}

SecretKey new_folder_key(FileSystem& folder, const std::vector<SecretKey>& keys) {
  const SecretKey key = random_key();
  write_folder_key(folder, key, keys.front());
  return key;
}

}  // namespace

bool is_encrypted(FileSystem& folder) { return has(folder.list(), kFolderKeyFile); }

std::unique_ptr<FileSystem> encrypt_folder(std::unique_ptr<FileSystem> folder,
                                           const std::string& keys_path) {
  const FolderLock lock(keys_path);  // keys may be wrapped again
  const std::vector<SecretKey> keys = read_state_keys(keys_path);
  const std::vector<FileSystem::Entry> files = folder->list();
  const bool known = has(files, kFolderKeyFile);
  if (!known && std::ranges::any_of(files, is_store_file)) {
    fail(
        "--state-dir has states that are not encrypted: use another folder with --state-keys, or "
        "leave --state-keys out");
  }
  const SecretKey key = known ? open_folder_key(*folder, keys) : new_folder_key(*folder, keys);
  return std::make_unique<EncryptedFolder>(std::move(folder), key, keys_path);
}

}  // namespace recurve
