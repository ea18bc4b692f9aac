#pragma once
#include <chrono>
#include <utility>

#include "server/session/session_store.h"

namespace recurve {

// Takes the session out of the counts and the orders that it stands in, and puts it back as it is
// then. Nothing in it can fail.
class SessionStore::Change {
 public:
  Change(SessionStore& store, Session& session)
      : store_(store),
        session_(session),
        tier_(session.tier()),
        expiry_(store.by_expiry_.extract({session.expires, &session})),
        use_(store.by_use_.extract({session.leave, session.used_at, &session})) {
    --store_.count_of(session_);
    store_.in_slot_alone_ -= session_.in_slot_alone();
    store_.reserved_ -= session_.reserved;
    store_.count_share(session_, -1);
    was_busy_ = session_.busy;
    store_.busy_ -= was_busy_;
  }
  ~Change() {
    ++store_.count_of(session_);
    store_.in_slot_alone_ += session_.in_slot_alone();
    if (const Tier tier = session_.tier(); tier != tier_) store_.count_move(tier);
    session_.reserved = store_.reserved_by(session_);
    store_.reserved_ += session_.reserved;
    store_.spare_room();
    session_.share = store_.share_of(session_);
    store_.count_share(session_, 1);
    store_.busy_ += session_.busy;
    store_.has_ended_ |= was_busy_ && !session_.busy;
    session_.expires = expiry(session_);
    if (!expiry_.empty()) {  // else it never expires
      expiry_.value() = {session_.expires, &session_};
      store_.by_expiry_.insert(std::move(expiry_));
    }
    session_.leave = store_.leave_of(session_);
    session_.used_at = session_.last_used;
    use_.value() = {session_.leave, session_.used_at, &session_};
    store_.by_use_.insert(std::move(use_));
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  static Clock::time_point expiry(const Session& session) {
    if (session.ttl_seconds == 0 || session.busy) return Clock::time_point::max();
    return session.last_used + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(session.ttl_seconds));
  }

  SessionStore& store_;
  Session& session_;
  const Tier tier_;
  bool was_busy_ = false;
  ByExpiry::node_type expiry_;
  ByUse::node_type use_;
};

}  // namespace recurve
