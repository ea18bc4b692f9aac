#include "server/object_store/remote_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "server/identity/base64.h"

namespace recurve {
namespace {

using Sent = ObjectResult::Outcome;
using Outcome = RemoteSessions::Outcome;

// The keys of blobs that `of` names and `other` does not.
std::vector<std::string> keys_only_in(const SessionHead& of, const SessionHead& other) {
  std::vector<std::string> keys;
  for (const RemoteBlob& blob : of.blobs) {
    if (std::ranges::find(other.blobs, blob) == other.blobs.end()) keys.push_back(blob.key);
  }
  return keys;
}

Outcome outcome_of(SealError::Why why) {
  switch (why) {
    case SealError::Why::kKey:
      return Outcome::kSealed;
    case SealError::Why::kDamage:
      return Outcome::kDamaged;
    case SealError::Why::kStore:
      break;
  }
  return Outcome::kFailed;
}

// What is sealed belongs to one session, and to one blob or answer of it.
std::string blob_context(const SessionHead& head, std::string_view key) {
  return fmt::format("{}/{}/{}", head.tenant, head.session, key);
}
std::string answer_context(const SessionHead& head) {
  return fmt::format("{}/{}/answer {}", head.tenant, head.session, head.commit);
}

int64_t bytes_of(const SessionHead& head) {
  int64_t sum = 0;
  for (const RemoteBlob& blob : head.blobs) sum += static_cast<int64_t>(blob.bytes);
  return sum;
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
  } catch (const NewerHead& error) {
    return {{Outcome::kNewer, error.what()}};
  } catch (const std::runtime_error& error) {
    return {{Outcome::kDamaged, error.what()}};
  }
}

RemoteSessions::Result RemoteSessions::create(const std::string& tenant, const std::string& session,
                                              const Commit& first, OwnedSession* owned) {
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
                   .commit = owned->head.commit};
  Result result = publish_commit(owned, std::move(next), first);
  if (result.outcome == Outcome::kLost) result.outcome = Outcome::kExists;
  return result;
}

RemoteSessions::Result RemoteSessions::find(const std::string& tenant, const std::string& session,
                                            OwnedSession* found) {
  Found now = read(tenant, session);
  if (now.result.done()) *found = {.head = std::move(now.head), .etag = std::move(now.etag)};
  return std::move(now.result);
}

RemoteSessions::Result RemoteSessions::take(OwnedSession* found) {
  SessionHead next = found->head;
  next.owner = owner_;
  next.nonce = new_nonce();
  ++next.epoch;
  return publish(found, std::move(next));
}

RemoteSessions::Result RemoteSessions::take_over(const std::string& tenant,
                                                 const std::string& session, OwnedSession* owned) {
  Result found = find(tenant, session, owned);
  return found.done() ? take(owned) : found;
}

RemoteSessions::Result RemoteSessions::commit(OwnedSession* owned, const Commit& commit) {
  if (owned->sent) return unknown(*owned, "settle it first");
  return publish_commit(owned, owned->head, commit);
}

RemoteSessions::Result RemoteSessions::publish_commit(OwnedSession* owned, SessionHead next,
                                                      const Commit& commit) {
  owned->began = std::chrono::steady_clock::now();
  if (next.owner != owner_) ++next.epoch;
  next.owner = owner_;
  next.nonce = new_nonce();
  ++next.commit;
  next.form = commit.form;
  next.record = commit.record;
  next.request = commit.request;
  next.digest = commit.digest;
  next.blobs = commit.retained;
  std::vector<std::string> written;
  Result result;
  try {
    if (seal_ != nullptr) seal_->prepare(next.tenant);
    next.answer = seal_answer(next, commit.answer);
    result = write_blobs(commit, &next, &written);
  } catch (const SealError& error) {
    result = {outcome_of(error.why()), error.what()};
  }
  if (!result.done()) {
    append(&owned->unused, std::move(written));
    return result;
  }
  return publish(owned, std::move(next));
}

std::string RemoteSessions::seal_answer(const SessionHead& head, const std::string& answer) {
  if (seal_ == nullptr || answer.empty()) return answer;
  const std::string_view parts[] = {answer};
  std::string text;
  append_base64(seal_->seal(head.tenant, answer_context(head), parts), &text);
  return text;
}

RemoteSessions::Result RemoteSessions::write_blobs(const Commit& commit, SessionHead* head,
                                                   std::vector<std::string>* written) {
  for (const auto& parts : commit.added) {
    const std::string key = new_blob_key(head->tenant);
    std::string sealed;
    std::string_view whole[1];
    std::span<const std::string_view> bytes = parts;
    if (seal_ != nullptr) {
      sealed = seal_->seal(head->tenant, blob_context(*head, key), parts);
      whole[0] = sealed;
      bytes = whole;
    }
    RemoteBlob blob{.key = key, .checksum = blob_checksum(bytes)};
    for (const std::string_view part : bytes) blob.bytes += part.size();
    written->push_back(blob.key);
    ObjectResult put = store_.put(blob.key, bytes);
    if (!put.done()) return {Outcome::kFailed, std::move(put.error)};
    head->blobs.push_back(std::move(blob));
  }
  return {};
}

RemoteSessions::Result RemoteSessions::publish(OwnedSession* owned, SessionHead next, bool resent) {
  // Its blobs may be collected, and so may the head of a session that was created and closed
  // meanwhile: a creation would bring back one that the client knows to be gone.
  const bool may_be_late = owned->head.closed() || !keys_only_in(next, owned->head).empty();
  if (may_be_late && std::chrono::steady_clock::now() - owned->began > kLongestCommit) {
    return too_late(owned, std::move(next), resent);
  }
  std::string text;
  try {
    text = head_text(next);
  } catch (const std::invalid_argument& error) {
    give_up(owned, next);
    return {Outcome::kFailed, error.what()};
  }
  const std::string_view parts[] = {text};
  const ObjectResult put = store_.put(
      head_key(next.tenant, next.session), parts,
      owned->etag.empty() ? ObjectCondition::is_new() : ObjectCondition::matches(owned->etag));
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
    if (was_removed && owned->head.closed()) {  // a closed session's head was collected
      *owned = {.began = owned->began, .unused = std::move(owned->unused)};
      return publish(owned, std::move(next), resent);
    }
    give_up(owned, next);
    return lost(*owned, found);
  }
  owned->sent = std::move(next);
  return unknown(*owned, put.error);
}

RemoteSessions::Result RemoteSessions::too_late(OwnedSession* owned, SessionHead next,
                                                bool resent) {
  constexpr const char* kWhy = "the server was stopped during the commit";
  if (resent) {
    owned->sent = std::move(next);
    return unknown(*owned, kWhy);
  }
  give_up(owned, next);
  return {Outcome::kFailed, fmt::format("the commit of session \"{}\" took more than an hour: {}",
                                        next.session, kWhy)};
}

RemoteSessions::Result RemoteSessions::settle(OwnedSession* owned) {
  if (!owned->sent) return {};
  return publish(owned, *std::exchange(owned->sent, std::nullopt), true);
}

RemoteSessions::Result RemoteSessions::close(OwnedSession* owned) { return commit(owned, {}); }

RemoteSessions::Result RemoteSessions::read_blob(const SessionHead& head, const RemoteBlob& blob,
                                                 uint64_t most_bytes, std::string* bytes) {
  const uint64_t most = seal_ == nullptr ? most_bytes : StoreSeal::sealed_bytes(most_bytes);
  if (blob.bytes > most) {
    return {Outcome::kDamaged, fmt::format("{} has {} bytes, and a state of this server at most {}",
                                           blob.key, blob.bytes, most)};
  }
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
  return open(head, blob_context(head, blob.key), std::move(got.body), bytes);
}

RemoteSessions::Result RemoteSessions::open_answer(const SessionHead& head, std::string* answer) {
  auto decoded = decoded_base64(head.answer);  // JSON is not base64
  if (head.answer.empty() || (seal_ == nullptr && !decoded)) {
    *answer = head.answer;
    return {};
  }
  return open(head, answer_context(head), decoded ? *std::move(decoded) : head.answer, answer);
}

RemoteSessions::Result RemoteSessions::open(const SessionHead& head, const std::string& context,
                                            std::string found, std::string* text) {
  if (seal_ == nullptr) {
    if (StoreSeal::is_sealed(found)) {
      return {Outcome::kSealed,
              fmt::format("the state of session \"{}\" is sealed: start the server with the "
                          "--state-keys of the others",
                          head.session)};
    }
    *text = std::move(found);
    return {};
  }
  try {
    *text = seal_->open(head.tenant, context, found);
    return {};
  } catch (const SealError& error) {
    return {outcome_of(error.why()),
            fmt::format("the state of session \"{}\": {}", head.session, error.what())};
  }
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

RemoteSessions::Result RemoteSessions::stored_bytes(const std::string& tenant, int64_t* bytes) {
  Result result;
  if (const auto found = bytes_.of(tenant, &result.error)) {
    *bytes = *found;
  } else {
    result.outcome = Outcome::kFailed;
  }
  return result;
}

void RemoteSessions::adopt(OwnedSession* owned, SessionHead head, std::string etag) {
  bytes_.add(head.tenant, bytes_of(head) - bytes_of(owned->head));
  append(&owned->unused, keys_only_in(owned->head, head));
  owned->head = std::move(head);
  owned->etag = std::move(etag);
}

// `never` will not be the head of the session.
void RemoteSessions::give_up(OwnedSession* owned, const SessionHead& never) {
  append(&owned->unused, keys_only_in(never, owned->head));
}

}  // namespace recurve
