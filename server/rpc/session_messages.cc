#include "server/rpc/session_messages.h"

#include "server/rpc/messages.h"
#include "server/rpc/responses.h"

namespace recurve {
namespace {

v1::SessionTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::kEmpty:
      return v1::SESSION_TIER_EMPTY;
    case Tier::kSlot:
      return v1::SESSION_TIER_SLOT;
    case Tier::kHost:
      return v1::SESSION_TIER_HOST;
    case Tier::kDisk:
      return v1::SESSION_TIER_DISK;
  }
  return v1::SESSION_TIER_UNSPECIFIED;
}

}  // namespace

void fill(const SessionInfo& info, v1::Session* session) {
  session->set_name(info.name);
  session->set_parent(info.parent);
  session->set_position(info.position);
  if (info.pending_token) session->set_pending_token(*info.pending_token);
  session->set_tier(tier_of(info.tier));
  session->set_busy(info.busy);
  session->set_epoch(info.epoch);
  session->set_idle_seconds(info.idle_seconds);
  session->set_ttl_seconds(info.ttl_seconds);
  session->set_state_bytes(info.state_bytes);
  session->set_host_bytes(info.host_bytes);
  session->set_durability(info.durability == Durability::kLocal ? v1::DURABILITY_LOCAL
                                                                : v1::DURABILITY_NONE);
  session->set_in_doubt(info.in_doubt);
  if (info.commit) fill(*info.commit, session->mutable_commit());
  for (const MarkInfo& mark : info.marks) {
    v1::SessionMark* to = session->add_marks();
    to->set_name(mark.name);
    to->set_position(mark.position);
  }
}

grpc::ByteBuffer one_session(const SessionResult& result) {
  v1::Session session;
  if (!result.sessions.empty()) fill(result.sessions.front(), &session);
  return serialise(session);
}

}  // namespace recurve
