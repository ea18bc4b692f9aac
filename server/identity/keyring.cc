#include "server/identity/keyring.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "server/identity/atomic_file.h"
#include "server/identity/tenants.h"
#include "server/identity/token_issuer.h"

namespace recurve {
namespace {

constexpr std::chrono::seconds kCheckInterval(1);

}  // namespace

// Verified tokens by their hash, so that each is verified once. Thread-safe.
class VerifiedTokens {
 public:
  static constexpr size_t kMost = 4096;  // more clear the table

  // Nothing for an unknown or expired token.
  std::optional<Identity> find(const KeyHash& hash, double now) const {
    std::lock_guard lock(mutex_);
    const auto found = tokens_.find(hash);
    if (found == tokens_.end() || now >= found->second.until) return std::nullopt;
    return found->second.whose;
  }
  // until and now: seconds of the system clock.
  void add(const KeyHash& hash, const Identity& whose, double until) {
    std::lock_guard lock(mutex_);
    if (tokens_.size() >= kMost) tokens_.clear();
    tokens_.insert_or_assign(hash, Entry{whose, until});
  }

 private:
  struct Entry {
    Identity whose;
    double until;
  };

  mutable std::mutex mutex_;
  std::map<KeyHash, Entry> tokens_;
};

// A loaded keys file.
struct Keyring::Keys {
  struct Holder {
    Identity identity;
    KeyHash hash = {};
    std::optional<KeyTime> expires = {};
  };
  // All files that were read, and their stamps just before.
  std::vector<std::string> files;
  std::vector<FileStamp> stamps;
  std::map<std::string, TenantLimits> limits;
  decltype(KeyFile::listed) listed;
  double share = 1;  // of all slots, for a tenant without a limit of slots
  std::unordered_map<std::string, Holder> by_id;
  std::map<std::string, Identity, std::less<>> by_subject;
  std::map<std::string, TokenIssuer, std::less<>> by_issuer;
  mutable VerifiedTokens verified_tokens;

  explicit Keys(const std::string& path) {
    add_file(path);
    const KeyFile file = read_key_file(path);
    limits = file.tenants;
    listed = file.listed;
    if (has_several_tenants(file)) share = kShareOfOne;
    for (const auto& key : file.keys) {
      Holder& holder = by_id[key.id];
      holder = {identity(key.tenant, key.role, key.id), key.hash, key.expires};
    }
    for (const auto& one : file.certificates) {
      by_subject[one.subject] = identity(one.tenant, one.role, "certificate");
    }
    for (const auto& issuer : file.issuers) add(issuer, path);
  }

  void add_file(const std::string& path) {
    files.push_back(path);
    stamps.push_back(stamp_of(path));
  }

  static bool has_several_tenants(const KeyFile& file) {
    std::set<std::string> tenants;
    for (const auto& key : file.keys) tenants.insert(key.tenant);
    for (const auto& one : file.certificates) tenants.insert(one.tenant);
    for (const auto& issuer : file.issuers) {
      if (issuer.tenant.empty()) return true;
      tenants.insert(issuer.tenant);
    }
    return tenants.size() > 1;
  }

  // key_id: for the audit log.
  Identity identity(const std::string& name, Role role, std::string_view key_id) const {
    const Tenant tenant = tenant_named(name);
    Identity found{.tenant = tenant.id, .role = role, .tenant_name = tenant.name};
    if (const auto own = limits.find(name); own != limits.end()) found.limits = own->second;
    if (found.limits.slots == TenantLimits::kNone) found.limits.slot_share = share;
    found.key_id = key_id;
    return found;
  }

  void add(const KeyFile::Issuer& issuer, const std::string& path) {
    const std::string jwks = std::filesystem::path(path).replace_filename(issuer.jwks).string();
    add_file(jwks);
    try {
      by_issuer.try_emplace(issuer.issuer, issuer, read_whole_file(jwks));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("--keys {}: issuer \"{}\": \"jwks\" {}: {}", path,
                                           issuer.issuer, issuer.jwks, error.what()));
    }
  }

  Found find(std::string_view key, bool verify) const {
    if (!by_issuer.empty() && is_token(key)) return find_token(key, verify);
    const std::string id(key_id_of(key));
    if (id.empty()) return {.why = Finding::kNotAKey};
    const auto found = by_id.find(id);
    // An unknown id takes as long as a known one.
    static const Holder kNoHolder{.identity = kStranger};
    const Holder& holder = found == by_id.end() ? kNoHolder : found->second;
    const KeyHash hash = hash_of(key);
    const bool same = CRYPTO_memcmp(hash.data(), holder.hash.data(), hash.size()) == 0;
    if (found == by_id.end()) return {.why = Finding::kUnknownKey};
    if (!same) return {.why = Finding::kWrongKey};
    if (holder.expires && std::chrono::system_clock::now() >= *holder.expires) {
      return {.why = Finding::kExpiredKey};
    }
    return {holder.identity, Finding::kKnown};
  }

  Found find_token(std::string_view text, bool verify) const {
    const KeyHash hash = hash_of(text);
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    const auto seconds = static_cast<double>(now.time_since_epoch().count());
    if (const auto known = verified_tokens.find(hash, seconds)) return {*known, Finding::kKnown};
    if (!verify) return {.why = Finding::kTooManyWrongTokens};
    const std::optional<SignedToken> token = SignedToken::read(text);
    if (!token) return {.why = Finding::kNotAKey};
    const auto claims = nlohmann::json::parse(token->claims(), nullptr, false);
    if (!claims.is_object()) return {.why = Finding::kNotAKey};
    const auto iss = claims.find("iss");
    if (iss == claims.end() || !iss->is_string()) return {.why = Finding::kUnknownIssuer};
    const auto issuer = by_issuer.find(iss->get_ref<const std::string&>());
    if (issuer == by_issuer.end()) return {.why = Finding::kUnknownIssuer};
    const TokenIssuer::Found found = issuer->second.find(*token, claims, now);
    if (found.why == TokenIssuer::Finding::kWrong) return {.why = Finding::kWrongToken};
    if (found.why == TokenIssuer::Finding::kExpired) return {.why = Finding::kExpiredToken};
    const Identity whose = identity(found.tenant, issuer->second.settings().role, "token");
    verified_tokens.add(hash, whose, found.until);
    return {whose, Finding::kKnown};
  }
};

Keyring::Keyring(std::string path, OnReload on_reload)
    : path_(std::move(path)),
      on_reload_(std::move(on_reload)),
      keys_(std::make_shared<const Keys>(path_)),
      stamps_(keys_->stamps),
      checked_(std::chrono::steady_clock::now()) {}

Keyring::~Keyring() = default;

std::shared_ptr<const Keyring::Keys> Keyring::current() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - checked_ < kCheckInterval) return keys_;
  checked_ = now;
  std::vector<FileStamp> found;
  for (const std::string& file : keys_->files) found.push_back(stamp_of(file));
  if (found == stamps_) return keys_;
  stamps_ = std::move(found);
  std::string problem;
  try {
    keys_ = std::make_shared<const Keys>(path_);
    stamps_ = keys_->stamps;
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  if (on_reload_) on_reload_(problem);
  return keys_;
}

Keyring::Found Keyring::find(std::string_view key, std::string_view subject, bool verify_tokens) {
  const std::shared_ptr<const Keys> keys = current();
  if (!key.empty()) return keys->find(key, verify_tokens);
  if (subject.empty()) return {};
  const auto found = keys->by_subject.find(subject);
  if (found == keys->by_subject.end()) return {.why = Finding::kUnknownCertificate};
  return {found->second, Finding::kKnown};
}

bool Keyring::sees(std::string_view tenant, BoundNames::Kind kind, std::string_view name) {
  const std::shared_ptr<const Keys> keys = current();
  const auto own = keys->listed.find(tenant);
  if (own != keys->listed.end() && (own->second.*kind).contains(name)) return true;
  return std::ranges::none_of(keys->listed,
                              [&](const auto& of) { return (of.second.*kind).contains(name); });
}

std::string_view name_of(Keyring::Finding why) {
  static constexpr std::array<std::string_view, 11> kNames = {"known",
                                                              "no_key",
                                                              "not_a_key",
                                                              "unknown_key",
                                                              "wrong_key",
                                                              "expired_key",
                                                              "unknown_issuer",
                                                              "wrong_token",
                                                              "expired_token",
                                                              "too_many_wrong_tokens",
                                                              "unknown_certificate"};
  return kNames[static_cast<size_t>(why)];
}

}  // namespace recurve
