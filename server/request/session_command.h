#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/binding.h"
#include "server/request/end_reason.h"
#include "server/request/state_transfer.h"

namespace recurve {

// Which changes of a session survive the end of the server, however it ends: none, or all that were
// acknowledged.
enum class Durability { kNone, kLocal, kRemote };

// Names of internal sessions begin with kReserved. Clients cannot choose or list them.
inline constexpr char kReserved = '~';
inline std::string reserved_name(const std::string& name) { return kReserved + name; }

// Where a session's state is.
enum class Tier { kEmpty, kSlot, kHost, kDisk };

// The commit of an answer or of a change of a session.
struct CommitInfo {
  uint64_t owner_epoch = 0;  // how often a server has opened the folder
  uint64_t number = 0;       // of the commit in its session, from 1
  int64_t position = 0;      // tokens absorbed
};

struct MarkInfo {
  std::string name = {};
  int64_t position = 0;  // tokens absorbed there
};

struct SessionInfo {
  std::string name = {};
  std::string model = {};   // by name
  std::string parent = {};  // the session that it was forked from; empty: none
  BindingNames binding = {};
  int64_t position = 0;                       // tokens absorbed
  std::optional<int32_t> pending_token = {};  // sampled last, absorbed with the next request
  Tier tier = Tier::kEmpty;
  bool busy = false;   // a request is queued or running on it
  uint64_t epoch = 0;  // changes made to it: requests, rewinds
  double idle_seconds = 0;
  double ttl_seconds = 0;   // idle time after which it is closed; 0: never
  int64_t state_bytes = 0;  // of its state
  int64_t page_bytes = 0;   // of these, those that grow with its tokens
  int64_t host_bytes = 0;   // host memory reserved for its state and marks
  std::vector<MarkInfo> marks = {};
  Durability durability = Durability::kNone;
  std::optional<CommitInfo> commit = {};  // the last one
  // Acknowledged changes or the state may be lost; position is that of the remaining state.
  bool in_doubt = false;
  int64_t rewind_tokens = 0;  // see SessionCommand
  int64_t tokens_from = 0;    // the ids of its tokens are stored from this position on
};

// The most of SessionCommand::rewind_tokens: so many tokens at most are absorbed again.
inline constexpr int64_t kMostRewindTokens = int64_t{1} << 18;

// A command on the sessions of one tenant, which the engine runs between two steps.
struct SessionCommand {
  enum class Kind {
    kOpen,    // name, ttl_seconds
    kFork,    // name -> other, a new session with the same state
    kMark,    // name: store the state as mark `other`; replaces a mark of that name
    kUnmark,  // name: remove the mark `other`
    kRewind,  // name: back to the mark `other`, or to `position`, from `state` if it is set
    kGet,     // name
    kList,    // names that begin with `name`, after the name `other`, at most `limit`
    kClose,   // name
    kAccept,  // name: continue from the remaining state
    kExport,  // name: serialize its state, or that of its mark `other`
    kImport,  // name: a new session with `state`
  };
  Kind kind = Kind::kGet;
  Identity caller = kAnyone;
  // Empty: the model of the session `name`, or the first; of kList: all. The engine ignores it.
  std::string model = {};
  std::string name = {};
  std::string other = {};
  // Absent: the server's default, or with kLocal never.
  std::optional<double> ttl_seconds = {};
  std::optional<Durability> durability = {};    // absent: kNone, or that of the session forked from
  std::optional<uint64_t> expected_epoch = {};  // refused if the session has another
  // kOpen, kImport: by name; and what ServedModel has found by it, or by the imported state.
  BindingNames chosen = {};
  Binding binding = {};
  // kOpen, kImport: the ids of so many last tokens are stored, so that kRewind can absorb them
  // again. A fork stores as many as the original.
  int64_t rewind_tokens = 0;
  std::optional<int64_t> position = {};  // kRewind: tokens absorbed there; absent: a mark
  int limit = 100;
  std::shared_ptr<const ReadyState> state = {};  // of kRewind kForeignState if of another text
  // Called once, on the engine's thread: may only post.
  std::function<void(struct SessionResult)> done = {};
};

struct SessionResult {
  enum class Progress {
    kEnded,
    kCommitting,  // the result comes after the commit
    kWaiting,     // run the command again after memory was freed
    kAbsorbing,   // the result comes after the session has absorbed tokens again
  };
  EndReason reason = EndReason::kDone;
  Progress progress = Progress::kEnded;     // unless kEnded, nothing below is set
  std::string message = {};                 // what is wrong and what to change
  std::vector<SessionInfo> sessions = {};   // one, or the list ordered by name
  bool more = false;                        // kList: not all fit in `limit`
  std::shared_ptr<StateSource> state = {};  // kExport
  int64_t absorbed = 0;                     // kRewind: tokens absorbed again
};
inline SessionResult refused_command(EndReason reason, std::string message) {
  return {.reason = reason, .message = std::move(message)};
}

}  // namespace recurve
