#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/request/clock.h"
#include "server/request/session_command.h"
#include "server/sampling/token_history.h"
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
};

// What host memory and disk are planned for on behalf of a session and its marks. A state that is
// on the disk for good has its room there.
struct SessionShare {
  int32_t small = 0;    // bytes of host memory beside states
  int32_t held = 0;     // states that have host memory for good
  int32_t movable = 0;  // states that are in host memory or on the disk, wherever there is room
  int32_t moved = 0;    // of these, those that are on the disk, or about to be
};

// A named state. It is in a slot, or in an image, or on the disk alone, or still empty; while a
// request runs on it, the request's sequence holds the slot. The members of `at` but the image are
// right in every tier; of a durable session they are those of its last commit until the next one is
// there, and what breaks off is as if it had never begun. What the store counts and keeps in order
// is changed by the store alone.
struct Session {
  TenantId tenant = 0;
  std::string_view tenant_name = kAnyone.tenant_name;
  std::string_view name;
  std::string parent = {};  // whose fork it is, by name; it may be closed since; empty: none
  Snapshot at;
  std::optional<StateSlot> slot = {};  // set: the state is here, and in at.image if that is set
  bool busy = false;                   // a request is queued or running on it, or a disk is
  bool running = false;                // a request has the state
  bool loading = false;                // its state is on its way from the disk
  bool emptying = false;               // it will have absorbed nothing once that is committed
  // Its state is on its way to the disk, by this number; 0: not, or kNoSpill: the disk took it not.
  uint64_t spill = 0;
  static constexpr uint64_t kNoSpill = UINT64_MAX;
  // Why its state did not come from the disk for a command that waits for it; null: it may.
  std::unique_ptr<const Archive::Loaded> not_loaded = {};
  // In what its states differ from those of this server, which it cannot be used with; null: they
  // do not, or that is not known yet.
  std::shared_ptr<const std::string> other_model = {};
  bool in_doubt = false;    // its record may not be the last one: see StateStore::Record
  bool state_lost = false;  // its state, which is on the disk alone, is damaged
  Durability durability = Durability::kNone;
  uint64_t epoch = 0;
  uint64_t commits = 0;
  uint64_t commit_owner = 0;  // of the last one: how often the folder had been taken then
  int64_t reserved = 0;       // bytes of host memory
  SessionShare share = {};
  double ttl_seconds = 0;
  Clock::time_point last_used;
  Clock::time_point used_at;  // where the store has it among others
  int leave = 0;
  Clock::time_point expires = Clock::time_point::max();  // max(): not as long as it is so
  std::map<std::string, Snapshot> marks;

  Tier tier() const;
  // Whether its slot has its state, and no image.
  bool in_slot_alone() const { return (slot || running) && !at.image; }
  bool durable() const { return durability != Durability::kNone; }
};

}  // namespace recurve
