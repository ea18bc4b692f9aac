// The end of a server: its sessions move to the store.
#include <algorithm>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/identity/tenants.h"
#include "server/observe/log.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;
using Outcome = RemoteSessions::Outcome;

constexpr std::string_view kNoTime = "there was no time for it";

// What a state of the session takes at the position, at most and about.
int64_t bytes_at(const SessionInfo& of, int64_t position) {
  if (position <= of.position) return of.state_bytes;
  if (of.position == 0) return std::numeric_limits<int64_t>::max();
  const double times = static_cast<double>(position) / static_cast<double>(of.position);
  return of.state_bytes + static_cast<int64_t>(static_cast<double>(of.page_bytes) * times);
}

}  // namespace

std::vector<SessionInfo> SharedSessions::sessions_of_engine(const Identity& caller) {
  std::vector<SessionInfo> all;
  SessionCommand list{.kind = Kind::kList, .caller = caller, .limit = kMaxPageSize};
  while (true) {
    SessionResult page = ask(list);
    if (page.sessions.empty()) return all;
    list.other = page.sessions.back().name;
    describe(caller, &page);
    for (SessionInfo& info : page.sessions) {
      if (info.durability != Durability::kRemote) all.push_back(std::move(info));
    }
    if (!page.more) return all;
  }
}

SharedSessions::Moved SharedSessions::move_to_store(Clock::time_point deadline) {
  struct One {
    Identity caller;
    SessionInfo info;
  };
  std::vector<One> all;
  for (const Tenant& tenant : known_tenants()) {
    Identity caller = kAnyone;
    caller.tenant = tenant.id;
    caller.tenant_name = tenant.name;
    for (SessionInfo& info : sessions_of_engine(caller)) all.push_back({caller, std::move(info)});
  }
  std::ranges::sort(all, std::ranges::greater(),
                    [](const One& one) { return one.info.state_bytes; });
  std::vector<std::future<std::optional<Moving>>> results;
  for (One& one : all) {
    const auto promised = std::make_shared<std::promise<std::optional<Moving>>>();
    results.push_back(promised->get_future());
    const auto work = [=, this](Entry& entry) {
      std::optional<Moving> moving;
      if (Clock::now() < deadline) moving = moved(one.caller, one.info, deadline, entry);
      OwnedSession left{.unused = std::exchange(entry.owned.unused, {})};
      release(one.caller, one.info.name);
      sessions_.remove_unused(&left);
      promised->set_value(std::move(moving));
    };
    hold(one.caller, one.info.name, work, /*drains=*/true);
  }
  Moved sum;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::optional<Moving> moving = results[i].get();
    const bool done = moving && moving->result.reason == EndReason::kDone;
    (done ? sum.moved : moving ? sum.failed : sum.late) += 1;
    if (done) {
      leave_marks(all[i].caller, all[i].info.name, *moving, &sum);
      continue;
    }
    log_event(LogLevel::kWarning, "session_not_moved",
              {{"tenant", all[i].caller.tenant_name},
               {"name", all[i].info.name},
               {"why", moving ? std::string_view(moving->result.message) : kNoTime}});
  }
  return sum;
}

void SharedSessions::leave_marks(const Identity& caller, const std::string& name,
                                 const Moving& moving, Moved* sum) {
  const auto marks = static_cast<int64_t>(moving.marks_left.size());
  if (marks == 0) return;
  sum->marks += marks;
  core_.metrics.leave_marks(marks);
  log_event(
      LogLevel::kWarning, "marks_not_moved",
      {{"tenant", caller.tenant_name}, {"name", name}, {"marks", marks}, {"why", moving.why_left}});
}

// A durable session leaves --state-dir: a server that starts with the folder must not continue it
// next to another one.
SharedSessions::Moving SharedSessions::moved(const Identity& caller, const SessionInfo& of,
                                             Clock::time_point deadline, Entry& entry) {
  Moving moving{.result = {.sessions = {of}}};
  if (const auto& adapter = of.binding.adapter; !adapter.empty()) {
    return {.result = result_of(no_adapter(adapter))};
  }
  try {
    if (Refused refused = unusable()) return {.result = result_of(refused)};
    const Result created =
        create_from_engine(caller, of.name, of.parent, entry, &moving.result.sessions.front());
    if (!created.done()) return {.result = result_of(refusal(created))};
    move_marks(caller, of, deadline, entry, &moving);
    if (of.durability == Durability::kLocal) drop(caller, of.name, entry);
  } catch (...) {
    return {.result = result_of(refusal_of_exception())};
  }
  return moving;
}

// One after the other, so that one takes memory at a time. The session is in the store already: if
// this ends early, it lacks marks, and nothing else.
void SharedSessions::move_marks(const Identity& caller, const SessionInfo& of,
                                Clock::time_point deadline, Entry& entry, Moving* moving) {
  moving->marks_left = of.marks;
  std::vector<MarkInfo>& left = moving->marks_left;
  while (!left.empty()) {
    if (Clock::now() >= deadline) {
      moving->why_left = kNoTime;
      return;
    }
    if (const Refused refused = move_mark(caller, of, left.back(), entry)) {
      moving->why_left = refused->message;
      return;
    }
    left.pop_back();
  }
}

// The state may be read from the disk, into memory that is not the session's.
Refused SharedSessions::move_mark(const Identity& caller, const SessionInfo& of,
                                  const MarkInfo& mark, Entry& entry) {
  try {
    const int64_t bytes = std::min(bytes_at(of, mark.position), model().info.most_written_bytes);
    const TransferMemory::Share share = transfers_.take(2 * bytes);
    SessionResult exported;  // of a mark where nothing was absorbed: no state
    if (mark.position > 0) {
      exported = ask({.kind = Kind::kExport,
                      .caller = caller,
                      .name = entry.owned.head.session,
                      .other = mark.name});
    }
    if (Refused refused = refusal_of(exported)) return refused;
    return refusal(write_mark(entry, mark, exported));
  } catch (...) {
    return refusal_of_exception();
  }
}

}  // namespace recurve
