#include "server/identity/state_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <stdexcept>

#include "server/identity/atomic_file.h"
#include "server/identity/hex.h"
#include "server/identity/key_file.h"

namespace recurve {
namespace {

constexpr std::string_view kFolderMagic = "RCRVCRPT", kTenantMagic = "RCRVTKEY";
constexpr size_t kStateKeyIdBytes = 8, kStateKeyIdDigits = 2 * kStateKeyIdBytes;

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

std::string_view text_of(const SecretKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

SecretKey key_from(std::string_view bytes) {
  SecretKey key;
  std::copy_n(bytes.begin(), key.size(), key.begin());
  return key;
}

// Wiped from memory by its destructor.
struct Secret {
  std::string text = {};
  ~Secret() { OPENSSL_cleanse(text.data(), text.size()); }
};

// A salt, and the text sealed with the key derived with it.
std::string wrap(std::string_view text, const SecretKey& with) {
  const std::string salt = random_bytes(kSaltBytes);
  return salt + Cipher(derived_key(with, salt)).seal(0, text);
}

bool unwrap(std::string_view wrapped, const SecretKey& with, std::string* text) {
  if (wrapped.size() < kSaltBytes) return false;
  Cipher cipher(derived_key(with, wrapped.substr(0, kSaltBytes)));
  return cipher.open(0, wrapped.substr(kSaltBytes), text);
}

}  // namespace

std::string state_key_id(const SecretKey& key) {
  constexpr std::string_view kOf = "recurve: id of an operator's key";
  return to_hex(text_of(derived_key(key, kOf)).substr(0, kStateKeyIdBytes));
}

std::vector<SecretKey> parse_state_keys(std::string_view text) {
  std::vector<SecretKey> keys;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() != 2 * sizeof(SecretKey) || !is_hex(line)) {
      refuse(
          fmt::format("line {} must be 64 hexadecimal digits, as `openssl rand -hex 32` writes "
                      "them",
                      keys.size() + 1));
    }
    Secret bytes{from_hex(line)};
    keys.push_back(key_from(bytes.text));
  }
  if (keys.empty()) refuse("it has no key");
  return keys;
}

std::vector<SecretKey> read_state_keys(const std::string& path) {
  Secret text{read_whole_file(path)};
  try {
    return parse_state_keys(text.text);
  } catch (const std::runtime_error& error) {
    refuse(fmt::format("\"{}\" cannot be used with --state-keys: {}", path, error.what()));
  }
}

std::string to_text(std::span<const SecretKey> keys) {
  std::string text;
  for (const SecretKey& key : keys) text += to_hex(text_of(key)) + "\n";
  return text;
}

std::string wrap_folder_key(const SecretKey& key, const SecretKey& with) {
  return std::string(kFolderMagic) + wrap(text_of(key), with);
}

std::optional<OpenedFolderKey> unwrap_folder_key(std::string_view wrapped,
                                                 std::span<const SecretKey> keys) {
  if (!wrapped.starts_with(kFolderMagic)) return std::nullopt;
  wrapped.remove_prefix(kFolderMagic.size());
  Secret text;
  for (size_t k = 0; k < keys.size(); ++k) {
    if (!unwrap(wrapped, keys[k], &text.text)) continue;
    if (text.text.size() != sizeof(SecretKey)) return std::nullopt;
    return OpenedFolderKey{key_from(text.text), k};
  }
  return std::nullopt;
}

TenantKey make_tenant_key(std::string_view tenant) {
  return {.id = to_hex(random_bytes(kStateKeyIdBytes)),
          .tenant = std::string(tenant),
          .key = random_key()};
}

std::string file_of_tenant_key(std::string_view id) {
  return std::string(kTenantKeyFile) + std::string(id);
}

std::string_view tenant_key_of_file(std::string_view name) {
  if (!name.starts_with(kTenantKeyFile)) return {};
  name.remove_prefix(kTenantKeyFile.size());
  return name.size() == kStateKeyIdDigits && is_hex(name) ? name : std::string_view();
}

std::string wrap_tenant_key(const TenantKey& key, const SecretKey& with) {
  Secret text;
  text.text.append(text_of(key.key)).append(from_hex(key.id)).append(key.tenant);
  return std::string(kTenantMagic) + from_hex(state_key_id(with)) + wrap(text.text, with);
}

std::string wrapped_with(std::string_view wrapped) {
  const bool is_one =
      wrapped.starts_with(kTenantMagic) && wrapped.size() >= kTenantMagic.size() + kStateKeyIdBytes;
  return is_one ? to_hex(wrapped.substr(kTenantMagic.size(), kStateKeyIdBytes)) : std::string();
}

OpenedTenantKey unwrap_tenant_key(std::string_view wrapped, std::string_view id,
                                  std::span<const SecretKey> keys) {
  const std::string file = file_of_tenant_key(id), with = wrapped_with(wrapped);
  if (with.empty()) refuse(fmt::format("{} is not a wrapped key: restore the file", file));
  size_t k = 0;
  while (k < keys.size() && state_key_id(keys[k]) != with) ++k;
  if (k == keys.size()) {
    refuse(fmt::format("{} needs the operator's key {}: add it to the file of --state-keys", file,
                       with));
  }
  Secret text;
  constexpr size_t kBegin = sizeof(SecretKey) + kStateKeyIdBytes;
  const bool opened =
      unwrap(wrapped.substr(kTenantMagic.size() + kStateKeyIdBytes), keys[k], &text.text);
  if (!opened || text.text.size() < kBegin || !is_tenant_name(text.text.substr(kBegin))) {
    refuse(fmt::format("{} was modified: restore the file", file));
  }
  const std::string own = to_hex(text.text.substr(sizeof(SecretKey), kStateKeyIdBytes));
  if (own != id) {
    refuse(fmt::format("{} is a copy of the file {}: restore the original", file,
                       file_of_tenant_key(own)));
  }
  return {{.id = own, .tenant = text.text.substr(kBegin), .key = key_from(text.text)}, k};
}

}  // namespace recurve
