#include "server/object_store/remote_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

using Sent = ObjectResult::Outcome;

// The keys of blobs that `of` names and `other` does not.
std::vector<std::string> keys_only_in(const SessionHead& of, const SessionHead& other) {
  std::vector<std::string> keys;
  for (const RemoteBlob& blob : of.blobs) {
    if (std::ranges::find(other.blobs, blob) == other.blobs.end()) keys.push_back(blob.key);
  }
  return keys;
}

void append(std::vector<std::string>* to, std::vector<std::string> keys) {
  to->insert(to->end(), std::make_move_iterator(keys.begin()), std::make_move_iterator(keys.end()));
}

}  // namespace

RemoteSessions::Found RemoteSessions::read(const std::string& tenant, const std::string& session) {
  ObjectResult found = store_.get(head_key(tenant, session), kMostBytesOfHead);
  if (found.outcome == Sent::kMissing) {
    return {{Outcome::kNoSession, fmt::format("there is no session \"{}\"", session)}};
  }
  if (!found.done()) return {{Outcome::kFailed, std::move(found.error)}};
  try {
    SessionHead head = parse_head(found.body, tenant, session);
    const Outcome outcome = head.closed() ? Outcome::kNoSession : Outcome::kDone;
    return {{outcome, head.closed() ? fmt::format("session \"{}\" was closed", session) : ""},
            std::move(found.etag),
            std::move(head)};
  } catch (const std::runtime_error& error) {
    return {{Outcome::kDamaged, error.what()}};
  }
}

RemoteSessions::Result RemoteSessions::create(const std::string& tenant, const std::string& session,
                                              std::string record, OwnedSession* owned) {
  Found found = read(tenant, session);
  if (found.result.done()) {
    return {Outcome::kExists,
            fmt::format("session \"{}\" exists, and {} owns it", session, found.head.owner)};
  }
  if (found.result.outcome != Outcome::kNoSession) return std::move(found.result);
  // The epochs of a closed session of that name continue: its last owner may still run.
  *owned = {.head = std::move(found.head), .etag = std::move(found.etag)};
  SessionHead next{.tenant = tenant,
                   .session = session,
                   .owner = owner_,
                   .epoch = owned->head.epoch + 1,
                   .commit = owned->head.commit + 1,
                   .nonce = new_nonce(),
                   .record = std::move(record)};
  Result result = publish(owned, std::move(next));
  if (result.outcome == Outcome::kLost) result.outcome = Outcome::kExists;
  return result;
}

RemoteSessions::Result RemoteSessions::take_over(const std::string& tenant,
                                                 const std::string& session, OwnedSession* owned) {
  Found found = read(tenant, session);
  if (!found.result.done()) return std::move(found.result);
  *owned = {.head = std::move(found.head), .etag = std::move(found.etag)};
  SessionHead next = owned->head;
  next.owner = owner_;
  next.nonce = new_nonce();
  ++next.epoch;
  return publish(owned, std::move(next));
}

RemoteSessions::Result RemoteSessions::commit(OwnedSession* owned, const Commit& commit) {
  if (owned->sent) return unknown(*owned, "settle it first");
  SessionHead next = owned->head;
  next.nonce = new_nonce();
  ++next.commit;
  next.record = commit.record;
  next.request = commit.request;
  next.digest = commit.digest;
  next.answer = commit.answer;
  next.blobs = commit.retained;
  std::vector<std::string> written;
  Result result = write_blobs(commit, &next, &written);
  if (!result.done()) {
    append(&owned->unused, std::move(written));
    return result;
  }
  return publish(owned, std::move(next));
}

RemoteSessions::Result RemoteSessions::write_blobs(const Commit& commit, SessionHead* head,
                                                   std::vector<std::string>* written) {
  for (const auto& parts : commit.added) {
    RemoteBlob blob{.key = new_blob_key(head->tenant), .checksum = blob_checksum(parts)};
    for (const std::string_view part : parts) blob.bytes += part.size();
    written->push_back(blob.key);
    ObjectResult put = store_.put(blob.key, parts);
    if (!put.done()) return {Outcome::kFailed, std::move(put.error)};
    head->blobs.push_back(std::move(blob));
  }
  return {};
}

RemoteSessions::Result RemoteSessions::publish(OwnedSession* owned, SessionHead next, bool resent) {
  std::string text;
  try {
    text = head_text(next);
  } catch (const std::invalid_argument& error) {
    give_up(owned, next);
    return {Outcome::kFailed, error.what()};
  }
  const std::string_view parts[] = {text};
  const ObjectResult put =
      store_.put(head_key(next.tenant, next.session), parts,
                 owned->etag.empty() ? PutCondition::is_new() : PutCondition::matches(owned->etag));
  if (put.done()) {
    adopt(owned, std::move(next), put.etag);
    return {};
  }
  if (put.outcome == Sent::kFailed && !resent) {
    give_up(owned, next);
    return {Outcome::kFailed, put.error};
  }
  // The store's head tells whether it was written. An ETag that was replaced never returns, as no
  // two heads are the same: then this one will not be written any more.
  Found found = read(next.tenant, next.session);
  if (found.head == next) {
    adopt(owned, std::move(next), std::move(found.etag));
    return {};
  }
  const bool was_removed = found.result.outcome == Outcome::kNoSession && found.etag.empty();
  if (found.etag != owned->etag && (!found.etag.empty() || was_removed)) {
    give_up(owned, next);
    return lost(*owned, found);
  }
  owned->sent = std::move(next);
  return unknown(*owned, put.error);
}

RemoteSessions::Result RemoteSessions::settle(OwnedSession* owned) {
  if (!owned->sent) return {};
  return publish(owned, *std::exchange(owned->sent, std::nullopt), true);
}

RemoteSessions::Result RemoteSessions::close(OwnedSession* owned) { return commit(owned, {}); }

RemoteSessions::Result RemoteSessions::read_blob(const RemoteBlob& blob, std::string* bytes) {
  ObjectResult got = store_.get(blob.key, blob.bytes);
  if (got.outcome == Sent::kMissing) {
    return {Outcome::kDamaged, fmt::format("{} is missing in the store", blob.key)};
  }
  if (!got.done()) return {Outcome::kFailed, std::move(got.error)};
  const std::string_view found[] = {got.body};
  if (got.body.size() != blob.bytes || blob_checksum(found) != blob.checksum) {
    return {Outcome::kDamaged,
            fmt::format("{} has {} bytes that are not the {} of its session's head", blob.key,
                        got.body.size(), blob.bytes)};
  }
  *bytes = std::move(got.body);
  return {};
}

void RemoteSessions::remove_unused(OwnedSession* owned) {
  for (const std::string& key : std::exchange(owned->unused, {})) store_.remove(key);
}

RemoteSessions::Result RemoteSessions::lost(const OwnedSession& owned, const Found& now) {
  const std::string& name = owned.head.session.empty() ? now.head.session : owned.head.session;
  if (now.etag.empty()) {
    return {Outcome::kLost, fmt::format("the head of session \"{}\" was removed", name)};
  }
  return {Outcome::kLost,
          fmt::format("session \"{}\" belongs to {} since epoch {}; this server had epoch {}", name,
                      now.head.owner, now.head.epoch, owned.head.epoch)};
}

RemoteSessions::Result RemoteSessions::unknown(const OwnedSession& owned, std::string_view why) {
  return {Outcome::kUnknown,
          fmt::format("it is unknown whether the store has commit {} of session \"{}\": {}",
                      owned.sent->commit, owned.sent->session, why)};
}

void RemoteSessions::adopt(OwnedSession* owned, SessionHead head, std::string etag) {
  append(&owned->unused, keys_only_in(owned->head, head));
  owned->head = std::move(head);
  owned->etag = std::move(etag);
}

// `never` will not be the head of the session.
void RemoteSessions::give_up(OwnedSession* owned, const SessionHead& never) {
  append(&owned->unused, keys_only_in(never, owned->head));
}

}  // namespace recurve
