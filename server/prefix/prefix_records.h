#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/prefix/stored_prefixes.h"
#include "server/storage/state_store.h"

namespace recurve {

// How a state that a prompt has left is recorded in the folder of states, for the servers to come:
// by the key "prefix TENANT/HASH", TENANT empty where it is anybody's, and the text, JSON:
//
//   {"of": 16 hexadecimal digits of what decides over its bits, "tokens", "gain", "hits"}
//
// "gain" and "hits" are those of StoredPrefixes::Entry when it was written. The record names the
// state, and the state's written form holds the ids that it has absorbed, as its "answer".

struct PrefixRecord {
  StoredPrefixes::Key key;
  StoredPrefixes::Entry entry;  // without its bytes
};

std::string prefix_record_key(const StoredPrefixes::Key& key);
std::string prefix_record_text(const StoredPrefixes::Entry& entry, std::string_view identity);
// Nothing if it is no such record. identity: of this server, which others' states are not usable
// for; shared: it may use what is anybody's, and else what is a tenant's.
std::optional<PrefixRecord> prefix_record_of(const StateStore::Record& record,
                                             std::string_view identity, bool shared);

}  // namespace recurve
