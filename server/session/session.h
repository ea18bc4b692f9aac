#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/request/clock.h"
#include "server/request/session_command.h"
#include "server/request/session_names.h"
#include "server/sampling/token_history.h"
#include "server/session/token_log.h"
#include "server/storage/archive.h"

namespace recurve {

// The request whose answer ended in a state; the answer itself is written with the state.
struct AnsweredRequest {
  std::string id;
  ShortText<32> digest;
};

// Everything a text has come to, outside a slot. Copies share image and written state.
struct Snapshot {
  int64_t position = 0;            // tokens absorbed
  std::optional<int32_t> pending;  // sampled last, not absorbed
  TokenHistory history;            // as end_request() leaves it; where only `stored` is: empty
  // Null: nothing absorbed yet, all zero, or only `stored` or the slot has it.
  StateImage image;
  StoredPtr stored = {};  // the same, on the disk; null: it is not there
  std::shared_ptr<const AnsweredRequest> answered = {};  // null: none, or not known
  TokenLog log = {};  // of the tokens absorbed, wherever the state is
  // Of a durable session: where the log's tokens are on the disk, each part behind the one before.
  // The log is not loaded as long as the state has not been read since the start.
  std::vector<StoredTokens> tokens = {};
};

// Where the state of a session is. SessionStore::update() alone changes it.
enum class Residency {
  kEmpty,     // nowhere: nothing was absorbed
  kSlot,      // in the session's slot; also in its image, if that is set
  kRunning,   // in the slot of a request that runs on it
  kSaving,    // the same, and what the request has made of it is being committed
  kHost,      // in its image
  kSpilling,  // the same, and it is being written to the disk, which it then may move to
  kDisk,      // on the disk alone
  kLoading,   // the same, and it is being read
};
inline constexpr size_t kResidencies = 8;

constexpr Tier tier_of(Residency residency) {
  constexpr Tier kTiers[kResidencies] = {Tier::kEmpty, Tier::kSlot, Tier::kSlot, Tier::kSlot,
                                         Tier::kHost,  Tier::kHost, Tier::kDisk, Tier::kDisk};
  return kTiers[static_cast<size_t>(residency)];
}

// That of a state that is in no slot.
inline Residency outside_slot(const Snapshot& at) {
  if (at.image) return Residency::kHost;
  return at.stored ? Residency::kDisk : Residency::kEmpty;
}

// What a session adds to the sums over all sessions: see SessionTotals.
struct SessionShare {
  Residency residency = Residency::kEmpty;
  bool in_slot_alone = false;  // its slot has its state, and no image
  bool busy = false;
  bool durable = false;
  bool internal = false;  // its name is reserved
  int32_t sessions = 0;   // 1 once it is counted
  int32_t entries = 0;    // itself and its marks
  int64_t reserved = 0;   // bytes of host memory
  int64_t disk = 0;       // bytes that a durable session reserves on the disk, without StoredPages
  // What host memory and disk are planned for, in bytes of host memory. A durable state that is on
  // the disk needs neither.
  int64_t small = 0;    // in addition to states
  int64_t held = 0;     // of states that have host memory for good
  int64_t movable = 0;  // of states that are in host memory or on the disk, whichever has capacity
  int64_t moved = 0;    // of these, those that are on the disk, or about to be
};

// A named state. The members of `at` but the image are right wherever the state is; of a durable
// session they are those of its last commit until the next one is there, and a change that fails
// leaves them as they were. What the store counts and sorts by is changed by the store alone.
struct Session {
  TenantId tenant = 0;
  std::string_view tenant_name = kAnyone.tenant_name;
  std::string_view name;
  SessionNames::Claim claim = {};  // null: this process has one model
  std::string parent = {};         // whose fork it is, by name; it may be closed since; empty: none
  Binding binding = {};
  Snapshot at;
  // The last image that its state has been in or begun with, as long as a mark, a fork or a cached
  // prompt has it: the next one shares its full pages.
  std::weak_ptr<const std::vector<StatePiece>> base = {};
  int64_t base_tokens = 0;
  Residency residency = Residency::kEmpty;
  std::optional<StateSlot> slot = {};  // of Residency::kSlot alone
  bool busy = false;                   // a request is queued or running on it, or a disk is
  bool emptying = false;               // it will have absorbed nothing once that is committed
  bool disk_refused = false;           // its state, which is not written again until it changes
  // Why its state did not come from the disk for a command that waits for it; null: it may.
  std::unique_ptr<const Archive::Loaded> not_loaded = {};
  // In what its states differ from those of this server, which it cannot be used with; null: they
  // do not, or that is not known yet.
  std::shared_ptr<const std::string> other_model = {};
  // The last page groups of its state and its marks, as they are counted, and the pages of its
  // state that are in page groups: see StoredPages.
  std::vector<uint64_t> page_groups = {};
  int64_t stored_pages = 0;
  bool in_doubt = false;    // its record may not be the last one: see StateStore::Record
  bool state_lost = false;  // its state, which is on the disk alone, is damaged
  Durability durability = Durability::kNone;
  // Tokens that its state may have absorbed after the request that is queued or running on it.
  int64_t planned_position = 0;
  int64_t replay_memory = 0;  // reserved for a Replay
  uint64_t epoch = 0;
  uint64_t commits = 0;
  uint64_t commit_owner = 0;  // of the last one: how often the folder had been taken then
  SessionShare share = {};    // as it is counted
  double ttl_seconds = 0;
  Clock::time_point last_used;
  Clock::time_point used_at;  // where the store has it among others
  int leave = 0;
  Clock::time_point expires = Clock::time_point::max();  // max(): not as long as it is so
  std::map<std::string, Snapshot> marks;

  Tier tier() const { return tier_of(residency); }
  bool durable() const { return durability != Durability::kNone; }
};

// A session returns to a token that has no mark: it absorbs the tokens after an earlier state
// again, and is as it was until that is done.
struct Replay {
  SessionCommand command;
  Session* session;
  Snapshot begin;  // if it has no image and is stored, it is to be read
  // Its image, as long as a mark or fork has it: the end shares its full pages.
  std::weak_ptr<const std::vector<StatePiece>> base = {};
  TokenLog log;                    // up to the position to return to
  std::optional<int32_t> pending;  // there
};

}  // namespace recurve
