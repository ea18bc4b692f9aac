#include "server/identity/key_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "server/identity/base64.h"
#include "server/identity/cipher.h"
#include "server/identity/hex.h"

namespace recurve {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "rck_";
constexpr size_t kIdDigits = 12, kSecretBytes = 32, kSecretLetters = 43;
constexpr size_t kMostNameBytes = 64;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void only(const json& object, const std::string& where, const std::set<std::string>& names) {
  if (!object.is_object()) fail(fmt::format("{} must be an object", where));
  for (const auto& [name, value] : object.items()) {
    if (!names.contains(name)) fail(fmt::format("{} has an unknown field \"{}\"", where, name));
  }
}

std::string string_of(const json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string() || found->get_ref<const std::string&>().empty())
    fail(fmt::format("{} must have \"{}\", a string", where, name));
  return *found;
}

double number_of(const json& object, const char* name, double least, double otherwise,
                 const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end()) return otherwise;
  const bool right =
      found->is_number() && found->get<double>() >= least && found->get<double>() <= 1e15;
  if (!right) fail(fmt::format("{}: \"{}\" must be a number of at least {}", where, name, least));
  return *found;
}

std::string tenant_of(const json& object, const std::string& where) {
  std::string name = string_of(object, "tenant", where);
  if (!is_tenant_name(name)) fail(fmt::format("{}: {}", where, tenant_name_rule(name)));
  return name;
}

Role role_of(const json& object, const std::string& where) {
  if (!object.contains("role")) return Role::kUser;
  const std::string name = string_of(object, "role", where);
  const auto role = role_named(name);
  if (!role)
    fail(fmt::format("{}: \"role\" must be user, observer or admin, got \"{}\"", where, name));
  return *role;
}

// The limits that are counts and bytes; without a field there is no limit.
constexpr struct {
  const char* name;
  int TenantLimits::* limit;
  int least;
} kCounts[] = {
    {"slots", &TenantLimits::slots, 1},       {"waiting", &TenantLimits::waiting, 1},
    {"sessions", &TenantLimits::sessions, 0}, {"priority", &TenantLimits::priority, -1000},
    {"choices", &TenantLimits::choices, 1},   {"prompt_tokens", &TenantLimits::prompt_tokens, 1}};
constexpr struct {
  const char* name;
  int64_t TenantLimits::* limit;
} kBytes[] = {{"host_bytes", &TenantLimits::host_bytes},
              {"page_bytes", &TenantLimits::page_bytes},
              {"disk_bytes", &TenantLimits::disk_bytes},
              {"store_bytes", &TenantLimits::store_bytes}};

constexpr struct {
  const char* name;
  BoundNames::Kind kind;
} kListed[] = {{"adapters", &BoundNames::adapters},
               {"initial_states", &BoundNames::initial_states}};

BoundNames listed_from(const json& object, const std::string& where) {
  BoundNames listed;
  for (const auto& [field, kind] : kListed) {
    const auto names = object.find(field);
    if (names == object.end()) continue;
    const bool right = names->is_array() && std::ranges::all_of(*names, [](const json& name) {
                         return name.is_string() && !name.get_ref<const std::string&>().empty();
                       });
    if (!right) fail(fmt::format("{}: \"{}\" must be a list of names", where, field));
    for (const json& name : *names) (listed.*kind).insert(name.get<std::string>());
  }
  return listed;
}

TenantLimits limits_from(const json& object, const std::string& where) {
  std::set<std::string> names = {"weight", "tokens_per_minute"};
  for (const auto& of : kListed) names.insert(of.name);
  for (const auto& of : kCounts) names.insert(of.name);
  for (const auto& of : kBytes) names.insert(of.name);
  only(object, where, names);
  TenantLimits limits;
  limits.weight = number_of(object, "weight", 1e-3, 1, where);
  limits.tokens_per_minute =
      static_cast<int64_t>(number_of(object, "tokens_per_minute", 1, 0, where));
  constexpr double kNone = TenantLimits::kNone;
  for (const auto& [name, limit, least] : kCounts) {
    limits.*limit = static_cast<int>(std::min(number_of(object, name, least, kNone, where), kNone));
  }
  for (const auto& [name, limit] : kBytes) {
    if (!object.contains(name)) continue;
    limits.*limit = static_cast<int64_t>(number_of(object, name, 0, 0, where));
  }
  return limits;
}

json to_json(const TenantLimits& limits) {
  json object = json::object();
  if (limits.weight != 1) object["weight"] = limits.weight;
  if (limits.tokens_per_minute > 0) object["tokens_per_minute"] = limits.tokens_per_minute;
  for (const auto& [name, limit, least] : kCounts) {
    if (limits.*limit != TenantLimits::kNone) object[name] = limits.*limit;
  }
  for (const auto& [name, limit] : kBytes) {
    if (limits.*limit != TenantLimits::kNoBytes) object[name] = limits.*limit;
  }
  return object;
}

KeyHash hash_from(const std::string& hex, const std::string& where) {
  KeyHash hash;
  if (hex.size() != 2 * hash.size() || !is_hex(hex)) {
    fail(fmt::format("{}: \"sha256\" must be {} hexadecimal digits", where, 2 * hash.size()));
  }
  const std::string bytes = from_hex(hex);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

KeyFile::Key key_from(const json& object, const std::string& where) {
  only(object, where, {"id", "tenant", "role", "sha256", "expires"});
  KeyFile::Key key{.id = string_of(object, "id", where),
                   .tenant = tenant_of(object, where),
                   .role = role_of(object, where),
                   .hash = hash_from(string_of(object, "sha256", where), where)};
  if (key.id.size() != kIdDigits || !is_hex(key.id)) {
    fail(fmt::format("{}: \"id\" must be {} hexadecimal digits", where, kIdDigits));
  }
  if (!object.contains("expires")) return key;
  key.expires = time_from(string_of(object, "expires", where));
  if (!key.expires) {
    fail(fmt::format("{}: \"expires\" must be a time as 2026-12-31T23:59:59Z", where));
  }
  return key;
}

KeyFile::Certificate certificate_from(const json& object, const std::string& where) {
  only(object, where, {"subject", "tenant", "role"});
  return {.subject = string_of(object, "subject", where),
          .tenant = tenant_of(object, where),
          .role = role_of(object, where)};
}

KeyFile::Issuer issuer_from(const json& object, const std::string& where) {
  only(object, where, {"issuer", "audience", "jwks", "tenant", "tenant_claim", "role"});
  if (object.contains("tenant") == object.contains("tenant_claim")) {
    fail(fmt::format("{} must have either \"tenant\" or \"tenant_claim\"", where));
  }
  KeyFile::Issuer issuer{.issuer = string_of(object, "issuer", where),
                         .audience = string_of(object, "audience", where),
                         .jwks = string_of(object, "jwks", where),
                         .role = role_of(object, where)};
  if (object.contains("tenant")) {
    issuer.tenant = tenant_of(object, where);
  } else {
    issuer.tenant_claim = string_of(object, "tenant_claim", where);
  }
  if (issuer.jwks.find('/') != std::string::npos) {
    fail(fmt::format("{}: \"jwks\" must be the name of a file in the folder of this one", where));
  }
  return issuer;
}

// The entries of a list, no two of which have the same id.
template <typename Entry>
std::vector<Entry> list_from(const json& all, const char* name, const char* entry,
                             Entry (*read)(const json& object, const std::string& where),
                             std::string Entry::* id, const char* id_name) {
  std::vector<Entry> entries;
  if (!all.contains(name)) return entries;
  if (!all.at(name).is_array()) fail(fmt::format("\"{}\" must be a list", name));
  std::set<std::string> ids;
  for (const json& object : all.at(name)) {
    const std::string where = fmt::format("{} {}", entry, entries.size() + 1);
    const Entry& added = entries.emplace_back(read(object, where));
    if (!ids.insert(added.*id).second)
      fail(fmt::format("{}: its {} is not unique", where, id_name));
  }
  return entries;
}

// RFC 4648, URL-safe and without padding.
std::string base64_url(const std::string& bytes) {
  std::string text;
  append_base64(bytes, &text);
  text.resize((4 * bytes.size() + 2) / 3);  // without padding
  std::ranges::replace(text, '+', '-');
  std::ranges::replace(text, '/', '_');
  return text;
}

}  // namespace

bool is_tenant_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::string tenant_name_rule(std::string_view name) {
  return fmt::format(
      "a tenant's name must be 1 to {} ASCII letters, digits, '-', '_' and '.', got \"{}\"",
      kMostNameBytes, name);
}

std::string_view key_id_of(std::string_view key) {
  if (key.size() != kPrefix.size() + kIdDigits + 1 + kSecretLetters) return {};
  const std::string_view id = key.substr(kPrefix.size(), kIdDigits);
  const bool right =
      key.starts_with(kPrefix) && is_hex(id) && key[kPrefix.size() + kIdDigits] == '_';
  return right ? id : std::string_view();
}

KeyHash hash_of(std::string_view key) {
  KeyHash hash;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), hash.data());
  return hash;
}

NewKey make_key() {
  const std::string id = random_bytes(kIdDigits / 2);
  NewKey key{.id = to_hex(id)};
  key.key = fmt::format("{}{}_{}", kPrefix, key.id, base64_url(random_bytes(kSecretBytes)));
  return key;
}

KeyFile parse_key_file(std::string_view text) {
  const json all = json::parse(text, nullptr, false);
  if (all.is_discarded()) fail("it is not JSON");
  only(all, "it", {"tenants", "keys", "certificates", "issuers"});
  KeyFile file;
  const json tenants = all.value("tenants", json::object());
  if (!tenants.is_object()) fail("\"tenants\" must be an object");
  for (const auto& [name, limits] : tenants.items()) {
    if (!is_tenant_name(name)) fail(tenant_name_rule(name));
    const std::string where = fmt::format("tenant \"{}\"", name);
    file.tenants[name] = limits_from(limits, where);
    file.listed[name] = listed_from(limits, where);
  }
  file.keys = list_from(all, "keys", "key", key_from, &KeyFile::Key::id, "id");
  file.certificates = list_from(all, "certificates", "certificate", certificate_from,
                                &KeyFile::Certificate::subject, "subject");
  file.issuers =
      list_from(all, "issuers", "issuer", issuer_from, &KeyFile::Issuer::issuer, "\"issuer\"");
  return file;
}

std::string to_text(const KeyFile& file) {
  json all = {{"tenants", json::object()}, {"keys", json::array()}};
  for (const auto& [name, limits] : file.tenants) all["tenants"][name] = to_json(limits);
  for (const auto& [name, listed] : file.listed) {
    for (const auto& [field, kind] : kListed) {
      if (!(listed.*kind).empty()) all["tenants"][name][field] = listed.*kind;
    }
  }
  for (const KeyFile::Key& key : file.keys) {
    json object = {
        {"id", key.id},
        {"tenant", key.tenant},
        {"role", name_of(key.role)},
        {"sha256", to_hex({reinterpret_cast<const char*>(key.hash.data()), key.hash.size()})}};
    if (key.expires) object["expires"] = to_text(*key.expires);
    all["keys"].push_back(std::move(object));
  }
  for (const KeyFile::Certificate& one : file.certificates) {
    all["certificates"].push_back(
        {{"subject", one.subject}, {"tenant", one.tenant}, {"role", name_of(one.role)}});
  }
  for (const KeyFile::Issuer& one : file.issuers) {
    const bool fixed = !one.tenant.empty();
    all["issuers"].push_back(
        {{"issuer", one.issuer},
         {"audience", one.audience},
         {"jwks", one.jwks},
         {fixed ? "tenant" : "tenant_claim", fixed ? one.tenant : one.tenant_claim},
         {"role", name_of(one.role)}});
  }
  return all.dump(2) + "\n";
}

std::optional<Role> role_named(std::string_view name) {
  for (const Role role : {Role::kUser, Role::kObserver, Role::kAdmin}) {
    if (name == name_of(role)) return role;
  }
  return std::nullopt;
}

std::string_view name_of(Role role) {
  switch (role) {
    case Role::kUser:
      return "user";
    case Role::kObserver:
      return "observer";
    case Role::kAdmin:
      return "admin";
    case Role::kAnonymous:
      break;
  }
  return "none";
}

std::optional<KeyTime> time_from(const std::string& text) {
  std::tm parts{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  const KeyTime time{std::chrono::seconds(timegm(&parts))};
  if (to_text(time) != text) return std::nullopt;  // February 31
  return time;
}

std::string to_text(KeyTime time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time.time_since_epoch().count()));
}

}  // namespace recurve
