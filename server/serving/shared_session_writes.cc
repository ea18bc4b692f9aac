// What servers write to the store: states, as one object or as page groups and the rest, and the
// heads that name them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/identity/cipher.h"
#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Outcome = RemoteSessions::Outcome;

// An answer of more bytes is a blob. The rest of a head is for names and other blobs.
constexpr size_t kMostAnswerInHead = size_t{256} << 10;

// Of a page group: none has it already, as none is the same by chance.
uint64_t new_id() {
  uint64_t id = 0;
  while (id == 0) {
    const std::string bytes = random_bytes(sizeof id);
    std::memcpy(&id, bytes.data(), sizeof id);
  }
  return id;
}

}  // namespace

// Why the tenant cannot have so many bytes more in the store.
Refused SharedSessions::check_share(const Identity& caller, int64_t more) {
  const int64_t most = caller.limits.store_bytes;
  if (most == TenantLimits::kNoBytes) return {};
  int64_t bytes = 0;
  const Result counted = sessions_.stored_bytes(tenant_of(caller), &bytes);
  if (!counted.done()) return refusal(counted);
  if (bytes + more <= most) return {};
  return refuse(
      EndReason::kExhausted,
      fmt::format("tenant \"{}\" may use {} bytes of the store for its sessions and marks, has {}, "
                  "and needs {} more for this one: close some, or remove marks",
                  caller.tenant_name, most, bytes, more));
}

// The same of a turn: its state is one more where there is none yet, or a mark has the present one.
Refused SharedSessions::check_share_of_turn(const Identity& caller, const SessionHead& head) {
  const HeadRecord record = record_of(head);
  if (record.state < 0) return check_share(caller, model().info.state_bytes);
  const bool is_marked = std::ranges::any_of(
      record.marks, [&](const auto& mark) { return mark.second.state == record.state; });
  if (!is_marked) return {};
  const RemoteBlob& state = head.blobs[static_cast<size_t>(record.state)];
  return check_share(caller, static_cast<int64_t>(state.bytes));
}

// Writes an exported state, and the answer that ended in it if there is one. The marks of the
// record remain.
SharedSessions::Result SharedSessions::write(
    Entry& entry, const SessionResult& exported, const std::string& request,
    const RecordedAnswer* answer, HeadRecord record,
    const std::function<Result(const RemoteSessions::Commit&)>& write) {
  const SessionHead& head = entry.owned.head;
  const SessionInfo& info = exported.sessions.front();
  record.position = info.position;
  record.rewind_tokens = info.rewind_tokens;
  record.tokens_from = info.rewind_tokens > 0 ? info.tokens_from : 0;
  record.state = record.answer = -1;
  const StateObjects state = objects_of(*exported.state->parts(), &record);
  const TransferMemory::Share share = transfers_.take(2 * state.bytes);
  RemoteSessions::Commit commit{.request = request, .retained = used_blobs(head, &record)};
  const HeadRecord::Mark at = add_state(state, record.group, &record, &commit);
  record.state = at.state;
  record.group = at.group;
  std::string text;
  std::string_view answer_parts[1];
  if (answer != nullptr && !request.empty()) {
    text = to_text(*answer);
    if (text.size() > kMostAnswerInHead) {
      record.answer = at.state + 1;
      answer_parts[0] = text;
      commit.added.emplace_back(answer_parts);
    } else {
      commit.answer = text;
    }
  }
  commit.record = to_text(record);
  commit.form = record.form();
  count_written(state);
  Result result = write(commit);
  if (result.outcome == Outcome::kUnknown) result = sessions_.settle(&entry.owned);
  return result;
}

// Adds the objects to the commit, which has all that it retains, and says where the state is then.
// before: the group with the pages before those that are written; -1: none.
HeadRecord::Mark SharedSessions::add_state(const StateObjects& state, int before,
                                           HeadRecord* record, RemoteSessions::Commit* commit) {
  for (const std::vector<std::string_view>& object : state.objects) {
    commit->added.emplace_back(object);
  }
  const int last = static_cast<int>(commit->retained.size() + commit->added.size()) - 1;
  HeadRecord::Mark at{.position = record->position, .state = last, .group = before};
  if (state.group) {
    record->groups.push_back(*state.group);
    record->groups.back().blob = last - 1;
    record->groups.back().before = before;
    at.group = static_cast<int>(record->groups.size()) - 1;
  }
  return at;
}

void SharedSessions::count_written(const StateObjects& state) {
  core_.metrics.count_store_bytes(Metrics::StoreBytes::kWritten,
                                  static_cast<uint64_t>(state.bytes));
}

// Writes an exported state, for which the caller has memory, as a mark of the session, which stays
// as it is. Its pages are not shared with other states.
SharedSessions::Result SharedSessions::write_mark(Entry& entry, const MarkInfo& mark,
                                                  const SessionResult& exported) {
  const SessionHead& head = entry.owned.head;
  HeadRecord record = record_of(head);
  if (record.marks.size() >= kMostMarks) return {Outcome::kFailed, too_many_marks(head.session)};
  HeadRecord::Mark at;
  StateObjects state;
  HeadRecord alone{.groups = record.groups};
  if (exported.state != nullptr) state = objects_of(*exported.state->parts(), &alone);
  RemoteSessions::Commit commit{.retained = used_blobs(head, &record)};
  if (exported.state != nullptr) {
    at = add_state(state, -1, &record, &commit);
    at.position = mark.position;
    at.tokens_from = record.rewind_tokens > 0 ? exported.sessions.front().tokens_from : 0;
  }
  record.marks[mark.name] = at;
  ++record.marked;
  commit.record = to_text(record);
  commit.form = record.form();
  count_written(state);
  Result result = sessions_.commit(&entry.owned, commit);
  if (result.outcome == Outcome::kUnknown) result = sessions_.settle(&entry.owned);
  return result;
}

// What of the state is to be written: all of it, or of one that grows its new pages as a page group
// and the rest, which refers to that. The record's groups are those of the head, and its group the
// last one that the state has of these.
SharedSessions::StateObjects SharedSessions::objects_of(StateParts& state, HeadRecord* record) {
  StateObjects made;
  const auto add = [&](WrittenParts parts) {
    made.objects.push_back(made.parts.emplace_back(std::move(parts)).all());
    for (const std::string_view part : made.objects.back()) {
      made.bytes += static_cast<int64_t>(part.size());
    }
  };
  const auto group_of = [&](int group) {
    return group < 0 ? HeadRecord::Group() : record->groups[static_cast<size_t>(group)];
  };
  const int64_t full = model().info.join_state ? state.full_pages() : 0;
  while (group_of(record->group).end > full) {  // it has returned to a token before
    record->group = group_of(record->group).before;
  }
  const int64_t written = group_of(record->group).end;
  if (record->groups.size() >= kMostGroups) {
    record->group = -1;  // with all its pages
    add(state.rest({}));
    return made;
  }
  PageGroupRef last = group_of(record->group).ref;
  if (full > written) {
    const NewPages pages = new_pages(*record, record->group);
    record->group = pages.before;
    StateParts::Group group = state.group(pages.first, group_of(pages.before).ref, new_id());
    last = group.ref;
    made.group = {.end = full, .level = pages.level, .ref = group.ref};
    add(std::move(group.parts));
  }
  add(state.rest(last));
  return made;
}

}  // namespace recurve
