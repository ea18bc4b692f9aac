// Forks and marks of sessions of durability remote: a mark names a blob of the session's head.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;
using Outcome = RemoteSessions::Outcome;

}  // namespace

// A fork that is to be in the store.
void SharedSessions::look_in_engine_and_store(SessionCommand command) {
  SessionResult original = ask({.kind = Kind::kExport,
                                .caller = command.caller,
                                .name = command.name,
                                .expected_epoch = command.expected_epoch});
  if (original.reason == EndReason::kNoSession) {
    return look_in_store(std::move(command), std::move(original));
  }
  if (original.reason == EndReason::kEmptySession) {  // and may have an adapter
    const SessionResult empty =
        ask({.kind = Kind::kGet, .caller = command.caller, .name = command.name});
    const std::string adapter =
        empty.sessions.empty() ? "" : empty.sessions.front().binding.adapter;
    if (!adapter.empty()) return command.done(result_of(no_adapter(adapter)));
    original.sessions = empty.sessions;
  }
  fork(std::move(command), original);
}

// original: the engine's session, exported; or the one of the store, if there is neither a state
// nor a refusal.
void SharedSessions::fork(SessionCommand command, const SessionResult& original) {
  SessionCommand made{.kind = Kind::kOpen, .caller = command.caller, .name = command.other};
  if (!original.sessions.empty()) made.rewind_tokens = original.sessions.front().rewind_tokens;
  Refused refused;
  try {
    if (original.state != nullptr) {
      const TransferMemory::Share share =
          transfers_.take(2 * static_cast<int64_t>(original.state->bytes()));
      std::string text(original.state->bytes(), '\0');
      original.state->read(0, text);
      made.kind = Kind::kImport;
      made.state = model().info.read_state(text);
    } else if (original.reason == EndReason::kDone) {
      refused = refusal(fork_of(command, &made));
    } else if (original.reason != EndReason::kEmptySession) {
      refused = refusal_of(original);
    }
  } catch (...) {
    refused = refusal_of_exception();
  }
  made.ttl_seconds = command.ttl_seconds;
  made.durability = command.durability.value_or(Durability::kRemote);
  const auto done = made.done = std::move(command.done);
  if (!refused && made.durability != Durability::kRemote) {
    refused = model().post_unaudited(std::move(made));
  } else if (!refused) {
    refused = check_ttl_of_shared(made);
    if (!refused) {
      refused =
          hold_for(std::move(made), [this, parent = command.name](SessionCommand of, Entry& entry) {
            return create(std::move(of), parent, entry);
          });
    }
  }
  if (refused) done(result_of(refused));
}

// Its owner may have committed since the head was read, and removed what that named.
SharedSessions::Result SharedSessions::fork_of(const SessionCommand& command,
                                               SessionCommand* made) {
  for (int attempt = 1;; ++attempt) {
    OwnedSession found;
    Result result = sessions_.find(tenant_of(command.caller), command.name, &found);
    if (!result.done()) return result;
    const SessionHead& head = found.head;
    const HeadRecord record = record_of(head);
    result = read(command.caller, head, record, record.at(), made);
    made->name = command.other;
    if (result.outcome != Outcome::kDamaged || attempt == kAttempts) return result;
  }
}

SessionResult SharedSessions::mark(SessionCommand command, Entry& entry) {
  return change_head(
      command, entry, /*keeps_answer=*/true,
      [&](const SessionHead& head, HeadRecord* record) -> std::optional<SessionResult> {
        // The next turn leaves it to the mark, but for pages, which they share.
        const uint64_t more =
            record->state < 0 ? 0 : head.blobs[static_cast<size_t>(record->state)].bytes;
        if (Refused over = check_share(command.caller, static_cast<int64_t>(more))) {
          return result_of(over);
        }
        auto& marks = record->marks;
        if (!marks.contains(command.other) && marks.size() >= kMostMarks) {
          return refused_command(EndReason::kExhausted, too_many_marks(command.name));
        }
        marks[command.other] = record->at();
        ++record->marked;
        return std::nullopt;
      });
}

SessionResult SharedSessions::unmark(SessionCommand command, Entry& entry) {
  return change_head(command, entry, /*keeps_answer=*/true,
                     [&](const SessionHead&, HeadRecord* record) -> std::optional<SessionResult> {
                       if (record->marks.erase(command.other) == 0) return no_mark(command);
                       ++record->marked;
                       return std::nullopt;
                     });
}

void SharedSessions::drop_if_replaced(const SessionCommand& command, Entry& entry) {
  if (!entry.here) return;
  OwnedSession found;
  const Result read = sessions_.find(tenant_of(command.caller), command.name, &found);
  if (read.outcome == Outcome::kFailed) return;
  if (!read.done() || found.etag != entry.owned.etag) drop(command.caller, command.name, entry);
}

SessionResult SharedSessions::change_head(const SessionCommand& command, Entry& entry,
                                          bool keeps_answer, const Change& change) {
  if (Refused refused = unusable()) return result_of(refused);
  for (int attempt = 1;; ++attempt) {
    Result result;
    if (!entry.here) {
      result = sessions_.find(tenant_of(command.caller), command.name, &entry.owned);
    }
    if (!result.done()) return result_of(refusal(result));
    const SessionHead& head = entry.owned.head;
    HeadRecord record = record_of(head);
    if (Refused refused =
            check_epoch(command.name, command.expected_epoch, epoch_of(head, record))) {
      return result_of(refused);
    }
    if (std::optional<SessionResult> known = change(head, &record)) return *std::move(known);
    RemoteSessions::Commit commit{.form = record.form(), .retained = used_blobs(head, &record)};
    commit.record = to_text(record);
    if (keeps_answer) {
      commit.request = head.request;
      commit.digest = head.digest;
      result = sessions_.open_answer(head, &commit.answer);
      if (!result.done()) return result_of(refusal(result));
    }
    result = sessions_.commit(&entry.owned, commit);
    if (result.outcome == Outcome::kUnknown) result = sessions_.settle(&entry.owned);
    if (result.done()) {
      if (entry.here) set_here(entry, true);
      return {.sessions = {info_of(entry.owned.head)}};
    }
    const bool changed = result.outcome == Outcome::kLost;
    if (entry.here && result.outcome != Outcome::kFailed) {
      drop(command.caller, command.name, entry);
    }
    if (!changed || attempt == kAttempts) return result_of(refusal(result));
  }
}

}  // namespace recurve
