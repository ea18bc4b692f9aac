#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>

#include "server/identity/atomic_file.h"
#include "server/identity/key_file.h"

namespace recurve {

KeyFile read_key_file(const std::string& path) {
  const std::string text = read_whole_file(path);
  try {
    return parse_key_file(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        fmt::format("the keys file \"{}\" cannot be used: {}", path, error.what()));
  }
}

std::string add_key(const std::string& path, const std::string& tenant, Role role,
                    std::optional<KeyTime> expires) {
  if (!is_tenant_name(tenant)) throw std::runtime_error(tenant_name_rule(tenant));
  const FolderLock lock(path);
  KeyFile file = std::filesystem::exists(path) ? read_key_file(path) : KeyFile{};
  const NewKey added = make_key();
  file.keys.push_back({.id = added.id,
                       .tenant = tenant,
                       .role = role,
                       .hash = hash_of(added.key),
                       .expires = expires});
  write_atomically(path, to_text(file));
  return added.key;
}

bool remove_key(const std::string& path, const std::string& id) {
  const FolderLock lock(path);
  KeyFile file = read_key_file(path);
  if (std::erase_if(file.keys, [&](const auto& key) { return key.id == id; }) == 0) return false;
  write_atomically(path, to_text(file));
  return true;
}

}  // namespace recurve
