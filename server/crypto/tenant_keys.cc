#include "server/crypto/tenant_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "server/identity/atomic_file.h"
#include "server/observe/log.h"
#include "server/storage/file_names.h"

namespace recurve {

std::string read_all(FileSystem& folder, const std::string& name) {
  const auto reader = folder.open(name);
  std::string text(reader->bytes(), '\0');
  reader->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void replace_file(FileSystem& folder, const std::string& name, std::string_view text) {
  const std::string temporary = name + std::string(kIncomplete);
  const auto writer = folder.create(temporary);
  writer->append(text);
  writer->sync();
  folder.rename(temporary, name);
  folder.sync_folder();
}

TenantKeys::TenantKeys(FileSystem& folder, std::string keys_path)
    : folder_(folder), keys_path_(std::move(keys_path)), keys_(read_state_keys(keys_path_)) {
  for (const auto& file : folder_.list()) {
    const std::string_view id = tenant_key_of_file(file.name);
    if (id.empty()) continue;
    try {
      const OpenedTenantKey opened = read(id);
      ids_.insert_or_assign(opened.key.tenant, opened.key.id);
      if (opened.opened_by == 0) continue;
      replace_file(folder_, file.name, wrap_tenant_key(opened.key, keys_.front()));
    } catch (const std::runtime_error& error) {
      log_event(LogLevel::kWarning, "state_key_unusable", {{"why", error.what()}});
    }
  }
}

// Reads the operator's keys again if they may have been replaced.
OpenedTenantKey TenantKeys::read(std::string_view id) {
  const std::string wrapped = read_all(folder_, file_of_tenant_key(id));
  const std::string with = wrapped_with(wrapped);
  const bool known =
      std::ranges::any_of(keys_, [&](const SecretKey& key) { return state_key_id(key) == with; });
  if (!known && !with.empty()) keys_ = read_state_keys(keys_path_);
  return unwrap_tenant_key(wrapped, id, keys_);
}

// The lock delays a concurrent replacement of the operator's keys.
TenantKey TenantKeys::create(std::string_view tenant) {
  const FolderLock lock(keys_path_);
  keys_ = read_state_keys(keys_path_);
  TenantKey key = make_tenant_key(tenant);
  replace_file(folder_, file_of_tenant_key(key.id), wrap_tenant_key(key, keys_.front()));
  ids_.insert_or_assign(key.tenant, key.id);
  log_event(LogLevel::kInfo, "state_key_made",
            {{"tenant", key.tenant}, {"file", file_of_tenant_key(key.id)}});
  return key;
}

TenantKey TenantKeys::for_writing(std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  const auto known = ids_.find(tenant);
  if (known == ids_.end()) return create(tenant);
  try {
    return read(known->second).key;
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::no_such_file_or_directory) throw;
  } catch (const std::runtime_error&) {  // reading what it has sealed reports it
  }
  return create(tenant);
}

SecretKey TenantKeys::for_reading(const std::string& id, std::string_view tenant) {
  const auto missing = [&](const std::string& why) {
    return KeyMissing(
        fmt::format("it is encrypted with a missing key of tenant \"{}\": {}", tenant, why));
  };
  const std::lock_guard lock(mutex_);
  try {
    return read(id).key.key;
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::no_such_file_or_directory) throw;
    throw missing(fmt::format("--state-dir has no file {}: restore it", file_of_tenant_key(id)));
  } catch (const std::runtime_error& error) {
    throw missing(error.what());
  }
}

}  // namespace recurve
