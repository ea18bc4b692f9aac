#include "server/identity/state_key_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "server/identity/atomic_file.h"
#include "server/identity/state_keys.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

// The files of tenants' keys in the folder, sorted.
std::vector<std::string> tenant_key_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename();
    if (!tenant_key_of_file(name).empty()) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

OpenedFolderKey read_folder_key(const fs::path& folder, const std::vector<SecretKey>& keys) {
  const auto opened = unwrap_folder_key(read_whole_file(folder / kFolderKeyFile), keys);
  if (opened) return *opened;
  throw std::runtime_error(
      fmt::format("no key of the file decrypts \"{}\": add the key that encrypted it",
                  (folder / kFolderKeyFile).string()));
}

TenantKey read_tenant_key(const fs::path& folder, const std::string& name,
                          const std::vector<SecretKey>& keys) {
  return unwrap_tenant_key(read_whole_file(folder / name), tenant_key_of_file(name), keys).key;
}

}  // namespace

void make_state_keys(const std::string& path) {
  const FolderLock lock(path);
  if (fs::exists(path)) {
    throw std::runtime_error(
        fmt::format("\"{}\" exists: `recurve keys state rotate` adds a new key to it", path));
  }
  write_atomically(path, to_text(std::vector{random_key()}));
}

size_t rotate_state_keys(const std::string& path, const std::vector<std::string>& folders,
                         bool drops_old) {
  const FolderLock lock(path);
  std::vector<SecretKey> keys = read_state_keys(path);
  keys.insert(keys.begin(), random_key());
  std::vector<std::pair<fs::path, std::string>> wrapped;  // files and their new content
  for (const fs::path folder : folders) {
    const OpenedFolderKey opened = read_folder_key(folder, keys);
    wrapped.emplace_back(folder / kFolderKeyFile, wrap_folder_key(opened.key, keys.front()));
    for (const std::string& name : tenant_key_files(folder)) {
      wrapped.emplace_back(folder / name,
                           wrap_tenant_key(read_tenant_key(folder, name, keys), keys.front()));
    }
  }
  // If the process stops anywhere, the keys of the file open all keys of the folders.
  write_atomically(path, to_text(keys));
  for (const auto& [file, text] : wrapped) write_atomically(file, text);
  if (drops_old) write_atomically(path, to_text(std::span(keys).first(1)));
  return wrapped.size();
}

std::vector<ListedKey> list_state_keys(const std::string& path, const std::string& folder) {
  const std::vector<SecretKey> keys = read_state_keys(path);
  std::vector<ListedKey> listed;
  const auto list = [&](const std::string& name, const auto& tenant_of) {
    ListedKey& one = listed.emplace_back(ListedKey{.file = name, .tenant = {}});
    try {
      one.tenant = tenant_of();
    } catch (const std::runtime_error& error) {
      one.problem = error.what();
    }
  };
  list(std::string(kFolderKeyFile), [&] {
    read_folder_key(folder, keys);
    return std::string();
  });
  for (const std::string& name : tenant_key_files(folder)) {
    list(name, [&] { return read_tenant_key(folder, name, keys).tenant; });
  }
  return listed;
}

std::vector<std::string> drop_tenant_keys(const std::string& path, const std::string& folder,
                                          const std::string& tenant) {
  const FolderLock lock(path);
  std::vector<std::string> dropped;
  std::string unknown;
  for (const ListedKey& key : list_state_keys(path, folder)) {
    if (!key.problem.empty()) unknown += "; " + key.problem;
    if (key.problem.empty() && key.tenant == tenant) dropped.push_back(key.file);
  }
  if (dropped.empty()) {
    throw std::runtime_error(
        fmt::format("tenant \"{}\" has no key in \"{}\"{}", tenant, folder, unknown));
  }
  for (const std::string& name : dropped) fs::remove(fs::path(folder) / name);
  sync_folder_of((fs::path(folder) / kFolderKeyFile).string());
  return dropped;
}

}  // namespace recurve
