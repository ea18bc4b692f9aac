#include "server/identity/keyring.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "server/identity/key_store.h"
#include "server/identity/tenants.h"

namespace recurve {
namespace {

constexpr std::chrono::seconds kLook(1);

}  // namespace

// A file of keys, made to be asked.
struct Keyring::Known {
  struct Holder {
    Identity identity;
    KeyHash hash = {};
    std::optional<KeyTime> expires = {};
  };
  std::unordered_map<std::string, Holder> by_id;
  std::map<std::string, Identity, std::less<>> by_subject;

  explicit Known(const KeyFile& file) {
    std::set<std::string> tenants;
    for (const auto& key : file.keys) tenants.insert(key.tenant);
    for (const auto& one : file.certificates) tenants.insert(one.tenant);
    const double share = tenants.size() > 1 ? kShareOfOne : 1;
    const auto identity = [&](const std::string& name, Role role) {
      const Tenant tenant = tenant_named(name);
      const auto limits = file.tenants.find(name);
      Identity made{.tenant = tenant.id, .role = role, .tenant_name = tenant.name};
      if (limits != file.tenants.end()) made.limits = limits->second;
      if (made.limits.slots == TenantLimits::kNone) made.limits.slot_share = share;
      return made;
    };
    for (const auto& key : file.keys) {
      Holder& holder = by_id[key.id];
      holder = {identity(key.tenant, key.role), key.hash, key.expires};
      holder.identity.key_id = std::string_view(key.id);
    }
    for (const auto& one : file.certificates) {
      Identity& holder = by_subject[one.subject] = identity(one.tenant, one.role);
      holder.key_id = std::string_view("certificate");
    }
  }

  Found find(std::string_view key) const {
    const std::string id(key_id_of(key));
    if (id.empty()) return {.why = Finding::kNotAKey};
    const auto found = by_id.find(id);
    // An id that is not known takes as long.
    static const Holder kNobody{.identity = kStranger};
    const Holder& holder = found == by_id.end() ? kNobody : found->second;
    const KeyHash hash = hash_of(key);
    const bool same = CRYPTO_memcmp(hash.data(), holder.hash.data(), hash.size()) == 0;
    if (found == by_id.end()) return {.why = Finding::kUnknownKey};
    if (!same) return {.why = Finding::kWrongKey};
    if (holder.expires && std::chrono::system_clock::now() >= *holder.expires) {
      return {.why = Finding::kExpiredKey};
    }
    return {holder.identity, Finding::kKnown};
  }
};

Keyring::Keyring(std::string path, OnReload on_reload)
    : path_(std::move(path)),
      on_reload_(std::move(on_reload)),
      loaded_(stamp()),
      known_(std::make_shared<const Known>(read_key_file(path_))),
      looked_(std::chrono::steady_clock::now()) {}

Keyring::~Keyring() = default;

Keyring::Stamp Keyring::stamp() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return {};
  return {status.st_ino, static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

std::shared_ptr<const Keyring::Known> Keyring::current() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLook) return known_;
  looked_ = now;
  const Stamp found = stamp();
  if (found == loaded_) return known_;
  loaded_ = found;
  std::string problem;
  try {
    known_ = std::make_shared<const Known>(read_key_file(path_));
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  if (on_reload_) on_reload_(problem);
  return known_;
}

Keyring::Found Keyring::find(std::string_view key, std::string_view subject) {
  const std::shared_ptr<const Known> known = current();
  if (!key.empty()) return known->find(key);
  if (subject.empty()) return {};
  const auto found = known->by_subject.find(subject);
  if (found == known->by_subject.end()) return {.why = Finding::kUnknownCertificate};
  return {found->second, Finding::kKnown};
}

std::string_view name_of(Keyring::Finding why) {
  switch (why) {
    case Keyring::Finding::kKnown:
      return "known";
    case Keyring::Finding::kNoKey:
      return "no_key";
    case Keyring::Finding::kNotAKey:
      return "not_a_key";
    case Keyring::Finding::kUnknownKey:
      return "unknown_key";
    case Keyring::Finding::kWrongKey:
      return "wrong_key";
    case Keyring::Finding::kExpiredKey:
      return "expired_key";
    case Keyring::Finding::kUnknownCertificate:
      break;
  }
  return "unknown_certificate";
}

}  // namespace recurve
