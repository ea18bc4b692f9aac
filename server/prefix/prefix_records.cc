#include "server/prefix/prefix_records.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/identity/tenants.h"

namespace recurve {
namespace {

using nlohmann::json;

std::string digits_of(std::string_view identity) {
  return fmt::format("{:016x}", checksum_of(identity));
}

}  // namespace

std::string prefix_record_key(const StoredPrefixes::Key& key) {
  return fmt::format("{}{}/{}", kExpendable, key.tenant, key.hash.text());
}

std::string prefix_record_text(const StoredPrefixes::Entry& entry, std::string_view identity) {
  return json{{"of", digits_of(identity)},
              {"tokens", entry.tokens},
              {"gain", entry.gain},
              {"hits", entry.hits}}
      .dump();
}

std::optional<PrefixRecord> prefix_record_of(const StateStore::Record& record,
                                             std::string_view identity, bool shared) {
  std::string_view key = record.key;
  if (!key.starts_with(kExpendable) || record.states.size() != 1) return std::nullopt;
  key.remove_prefix(kExpendable.size());
  const size_t slash = key.find('/');  // tenants' names have none
  if (slash == std::string_view::npos) return std::nullopt;
  PrefixRecord found;
  if (!PrefixHash::parse(key.substr(slash + 1), &found.key.hash)) return std::nullopt;
  const json text = json::parse(record.text, nullptr, false);
  try {
    found.entry = {.state = record.states[0],
                   .tokens = text.at("tokens"),
                   .gain = text.at("gain"),
                   .hits = text.at("hits"),
                   .usable = text.at("of") == digits_of(identity) && shared == (slash == 0)};
  } catch (const json::exception&) {
    return std::nullopt;
  }
  if (slash > 0) found.key.tenant = tenant_named(key.substr(0, slash)).name;
  return found;
}

}  // namespace recurve
