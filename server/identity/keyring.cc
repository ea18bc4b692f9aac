#include "server/identity/keyring.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "server/identity/good_tokens.h"
#include "server/identity/key_store.h"
#include "server/identity/tenants.h"
#include "server/identity/token_issuer.h"
#include "server/identity/whole_file.h"

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
  // All that was read, and what they were just before.
  std::vector<std::string> files;
  std::vector<FileStamp> stamps;
  std::map<std::string, TenantLimits> limits;
  double share = 1;  // of all slots, that a tenant may have whose limits do not say it
  std::unordered_map<std::string, Holder> by_id;
  std::map<std::string, Identity, std::less<>> by_subject;
  std::map<std::string, TokenIssuer, std::less<>> by_issuer;
  mutable GoodTokens good_tokens;

  explicit Known(const std::string& path) {
    about_to_read(path);
    const KeyFile file = read_key_file(path);
    limits = file.tenants;
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

  void about_to_read(const std::string& path) {
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

  // key_id: what the audit says of what was shown.
  Identity identity(const std::string& name, Role role, std::string_view key_id) const {
    const Tenant tenant = tenant_named(name);
    Identity made{.tenant = tenant.id, .role = role, .tenant_name = tenant.name};
    if (const auto found = limits.find(name); found != limits.end()) made.limits = found->second;
    if (made.limits.slots == TenantLimits::kNone) made.limits.slot_share = share;
    made.key_id = key_id;
    return made;
  }

  void add(const KeyFile::Issuer& issuer, const std::string& path) {
    const std::string jwks = std::filesystem::path(path).replace_filename(issuer.jwks).string();
    about_to_read(jwks);
    try {
      by_issuer.try_emplace(issuer.issuer, issuer, read_whole(jwks));
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

  Found find_token(std::string_view text, bool verify) const {
    const KeyHash hash = hash_of(text);
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    const auto seconds = static_cast<double>(now.time_since_epoch().count());
    if (const auto known = good_tokens.find(hash, seconds)) return {*known, Finding::kKnown};
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
    good_tokens.add(hash, whose, found.until);
    return {whose, Finding::kKnown};
  }
};

Keyring::Keyring(std::string path, OnReload on_reload)
    : path_(std::move(path)),
      on_reload_(std::move(on_reload)),
      known_(std::make_shared<const Known>(path_)),
      seen_(known_->stamps),
      looked_(std::chrono::steady_clock::now()) {}

Keyring::~Keyring() = default;

std::shared_ptr<const Keyring::Known> Keyring::current() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLook) return known_;
  looked_ = now;
  std::vector<FileStamp> found;
  for (const std::string& file : known_->files) found.push_back(stamp_of(file));
  if (found == seen_) return known_;
  seen_ = std::move(found);
  std::string problem;
  try {
    known_ = std::make_shared<const Known>(path_);
    seen_ = known_->stamps;
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  if (on_reload_) on_reload_(problem);
  return known_;
}

Keyring::Found Keyring::find(std::string_view key, std::string_view subject, bool verify_tokens) {
  const std::shared_ptr<const Known> known = current();
  if (!key.empty()) return known->find(key, verify_tokens);
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
    case Keyring::Finding::kUnknownIssuer:
      return "unknown_issuer";
    case Keyring::Finding::kWrongToken:
      return "wrong_token";
    case Keyring::Finding::kExpiredToken:
      return "expired_token";
    case Keyring::Finding::kTooManyWrongTokens:
      return "too_many_wrong_tokens";
    case Keyring::Finding::kUnknownCertificate:
      break;
  }
  return "unknown_certificate";
}

}  // namespace recurve
