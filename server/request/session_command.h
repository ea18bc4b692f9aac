#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/durability.h"
#include "server/request/end_reason.h"
#include "server/request/state_transfer.h"

namespace recurve {

// The name of a session that a frontend keeps for itself: names that clients choose cannot begin
// so, and it is in no list.
inline constexpr char kReserved = '~';
inline std::string reserved_name(const std::string& name) { return kReserved + name; }

// Where a session's state is.
enum class Tier { kEmpty, kSlot, kHost, kDisk };

// What an answer, or a change of a session, was acknowledged with.
struct CommitInfo {
  uint64_t owner_epoch = 0;  // how often a server has taken the folder
  uint64_t number = 0;       // of the session's commits, from 1 on
  int64_t position = 0;      // tokens absorbed
};

struct MarkInfo {
  std::string name = {};
  int64_t position = 0;  // tokens absorbed there
};

struct SessionInfo {
  std::string name = {};
  std::string parent = {};                    // that it was forked from; empty: none
  int64_t position = 0;                       // tokens absorbed
  std::optional<int32_t> pending_token = {};  // sampled last, absorbed with the next request
  Tier tier = Tier::kEmpty;
  bool busy = false;   // a request is queued or running on it
  uint64_t epoch = 0;  // changes made to it: requests, rewinds
  double idle_seconds = 0;
  double ttl_seconds = 0;   // idle time after which it is closed; 0: never
  int64_t state_bytes = 0;  // of one state
  int64_t host_bytes = 0;   // reserved in host memory: its own and its marks'
  std::vector<MarkInfo> marks = {};
  Durability durability = Durability::kNone;
  std::optional<CommitInfo> commit = {};  // the last one
  // Acknowledged changes may be lost, or its state is: position is what is still there.
  bool in_doubt = false;
};

// A wish about the sessions of one tenant, carried out by the engine between two steps.
struct SessionCommand {
  enum class Kind {
    kOpen,    // name, ttl_seconds
    kFork,    // name -> other, a new session with the same state
    kMark,    // name: remember the state as `other`; an existing mark of that name moves
    kUnmark,  // name: forget the mark `other`
    kRewind,  // name: back to the mark `other`
    kGet,     // name
    kList,    // names that begin with `name`, after the name `other`, at most `limit`
    kClose,   // name
    kAccept,  // name: goes on from what is still there of it
    kExport,  // name: its state, to be written elsewhere
    kImport,  // name: a new session, with `state`
  };
  Kind kind = Kind::kGet;
  Identity caller = kAnyone;
  std::string name = {};
  std::string other = {};
  // Absent: the server's default, or with kLocal never.
  std::optional<double> ttl_seconds = {};
  std::optional<Durability> durability = {};    // absent: kNone, or that of the session forked from
  std::optional<uint64_t> expected_epoch = {};  // refused where the session has another
  int limit = 100;
  std::shared_ptr<const ReadyState> state = {};
  // Called once, on the engine's thread: may only post.
  std::function<void(struct SessionResult)> done = {};
};

struct SessionResult {
  enum class Progress {
    kEnded,
    kCommitting,  // the result comes when it is on the disk
    kWaiting,     // the command is to be run again when there may be room
  };
  EndReason reason = EndReason::kDone;
  Progress progress = Progress::kEnded;     // else nothing below is set
  std::string message = {};                 // what is wrong and what to change
  std::vector<SessionInfo> sessions = {};   // one, or the list in the order of names
  bool more = false;                        // kList: there are further ones
  std::shared_ptr<StateSource> state = {};  // kExport
};

}  // namespace recurve
