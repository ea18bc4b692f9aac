#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/object_store/object_store.h"
#include "server/object_store/session_head.h"
#include "server/object_store/store_seal.h"
#include "server/object_store/stored_bytes.h"

namespace recurve {

// A session that this server owns, as far as it knows. One thread at a time.
struct OwnedSession {
  SessionHead head = {};  // of the last commit that is known to be done
  std::string etag = {};
  // A head that was sent, of which it is unknown whether the store has it.
  std::optional<SessionHead> sent = {};
  // When its blobs began to be written.
  std::chrono::steady_clock::time_point began = {};
  std::vector<std::string> unused = {};  // keys of blobs that no head names: see remove_unused()
};

// A head that names new blobs or creates a session is not sent any more so long after its blobs
// began to be written. A collector removes blobs without a head, and heads of closed sessions, only
// much later.
inline constexpr std::chrono::hours kLongestCommit{1};

// Threads of a server that call the store.
inline constexpr int kStoreThreads = 16;
// Memory for states on their way to the store and back, where a state takes so many bytes: all
// threads may have one, twice, as long as that is 256 MiB at most; one may always.
inline constexpr int64_t transfer_bytes(int64_t state_bytes) {
  constexpr int64_t kMost = int64_t{256} << 20;
  return std::max(2 * state_bytes, std::min(2 * kStoreThreads * state_bytes, kMost));
}

// Sessions in an object store that several servers share. Which of them owns a session, and what
// its last commit is, is in the session's head alone: each change of it is a write on the condition
// that the head is the one that was read or written last. So of two servers one commits, and the
// other one is told who owns the session. Calls block. Any thread.
class RemoteSessions {
 public:
  enum class Outcome {
    kDone,
    kNoSession,   // there is none of that name
    kExists,      // there is one
    kLost,        // another server owns the session
    kDamaged,     // what is in the store cannot be used
    kNewer,       // a newer server has written it
    kOtherModel,  // it is of another model; the caller knows
    kSealed,      // it is sealed with a key that is missing, or is not sealed but should be
    kFailed,      // nothing was changed
    kUnknown,     // of commit() and settle(): the change may be done. Only settle() is allowed
  };
  struct Result {
    Outcome outcome = Outcome::kDone;
    std::string error = {};  // a sentence, if it is not done
    bool done() const { return outcome == Outcome::kDone; }
  };

  // owner: of this process alone, UTF-8. seal: of blobs and answers; null: they are not sealed.
  // Both outlive the sessions.
  RemoteSessions(ObjectStore& store, std::string owner, StoreSeal* seal = nullptr)
      : store_(store), owner_(std::move(owner)), seal_(seal), bytes_(store) {}

  struct Commit {
    HeadForm form = HeadForm::k1;
    std::string record = {};
    std::string request = {}, digest = {}, answer = {};
    // The blobs of the state: those of the head that it still has, and new ones.
    std::vector<RemoteBlob> retained = {};
    std::vector<std::span<const std::string_view>> added = {};
  };
  // A new session.
  Result create(const std::string& tenant, const std::string& session, const Commit& first,
                OwnedSession* owned);
  // Reads the session's head. The session is not owned yet: only take(), commit(), close(),
  // read_blob() and open_answer() are allowed.
  Result find(const std::string& tenant, const std::string& session, OwnedSession* found);
  // Takes the session that find() has read from its owner, which cannot commit any more. kLost: the
  // session has changed since.
  Result take(OwnedSession* found);
  // Both.
  Result take_over(const std::string& tenant, const std::string& session, OwnedSession* owned);

  // Writes the new blobs, and then the head, which names them: after kDone any server finds this
  // commit, and this one owns the session. On kLost and kFailed it will never be found. Also of a
  // session that find() has read: no state is needed for it.
  Result commit(OwnedSession* owned, const Commit& commit);
  // After kUnknown: finds out whether the commit was done, and does it if it was not.
  Result settle(OwnedSession* owned);
  // The session ends for all servers.
  Result close(OwnedSession* owned);

  // The bytes of a blob of the session, at most so many, which are taken as they arrive. kDamaged:
  // it is missing, cut off, or has other bytes.
  Result read_blob(const SessionHead& head, const RemoteBlob& blob, uint64_t most_bytes,
                   std::string* bytes);
  // The answer of the head.
  Result open_answer(const SessionHead& head, std::string* answer);
  // Of all sessions of the tenant: see StoredBytes. kFailed: they are not known.
  Result stored_bytes(const std::string& tenant, int64_t* bytes);
  // Removes the objects that earlier calls left without a use. Those that cannot be removed now
  // remain in the store.
  void remove_unused(OwnedSession* owned);

 private:
  struct Found {
    Result result;
    std::string etag = {};
    SessionHead head = {};
  };
  Found read(const std::string& tenant, const std::string& session);
  Result write_blobs(const Commit& commit, SessionHead* head, std::vector<std::string>* written);
  // resent: the head was sent before, and may be written.
  Result publish(OwnedSession* owned, SessionHead next, bool resent = false);
  static Result too_late(OwnedSession* owned, SessionHead next, bool resent);
  Result publish_commit(OwnedSession* owned, SessionHead next, const Commit& commit);
  std::string seal_answer(const SessionHead& head, const std::string& answer);
  // found: as it is in the store.
  Result open(const SessionHead& head, const std::string& context, std::string found,
              std::string* text);
  static Result lost(const OwnedSession& owned, const Found& now);
  static Result unknown(const OwnedSession& owned, std::string_view why);
  void adopt(OwnedSession* owned, SessionHead head, std::string etag);
  static void give_up(OwnedSession* owned, const SessionHead& never);

  ObjectStore& store_;
  const std::string owner_;
  StoreSeal* const seal_;
  StoredBytes bytes_;
};

}  // namespace recurve
