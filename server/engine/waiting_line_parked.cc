// WaitingLine: requests that wait for a disk before they are queued, because the state of their
// session, the prefix of their prompt or the answer to a repeated request is there; and session
// commands that wait for memory to be freed.
#include <fmt/format.h>

#include <utility>

#include "server/engine/recorded_answer.h"
#include "server/engine/request_digest.h"
#include "server/engine/waiting_line.h"

namespace recurve {

namespace {

// Sends the recorded answer of a repeated request.
void repeat(const std::vector<std::shared_ptr<TokenStream>>& streams, const Archive::Loaded& loaded,
            const std::optional<CommitInfo>& commit) {
  TokenStream& stream = *streams.front();
  const StateHeader& header = loaded.header;
  if (!loaded.error.empty() || !header.answer) {
    return stream.finish({.reason = loaded.error.empty() ? EndReason::kStateLost : loaded.reason,
                          .message = "the recorded answer cannot be read: " + loaded.error});
  }
  const StateAnswer& answer = *header.answer;
  repeat({.reason = reason_from(answer.reason),
          .stop_id = answer.stop_id,
          .prompt_tokens = answer.prompt_tokens,
          .before = answer.before,
          .position = header.position,
          .continues_text = !answer.begins_text,
          .seed = answer.seed,
          .ids = header.answer_ids},
         commit, stream);
}

}  // namespace

// True if the request has ended or waits for a disk.
bool WaitingLine::check_session(Line& one) {
  const Request& request = one.front()->request;
  Session& session = *one.front()->session;
  const auto refuse = [&](EndReason reason, std::string message) {
    this->refuse(request, {.reason = reason, .message = std::move(message)});
    return true;
  };
  if (const auto unusable = sessions_.unusable(session)) {
    return refuse(unusable->reason, unusable->message);
  }
  if (session.durable()) {
    if (std::string lost = sessions_.archive()->lost(); !lost.empty()) {
      return refuse(EndReason::kFolderLost, std::move(lost));
    }
  }
  const auto& answered = session.at.answered;
  if (answered && !request.id.empty() && answered->id == request.id) {
    if (std::string_view(answered->digest) != digest_of(request)) {
      return refuse(
          EndReason::kOtherRequest,
          fmt::format("request \"{}\" was answered with other contents: use a new id", request.id));
    }
    const auto commit = sessions_.last_commit(session);
    sessions_.archive()->load_answer(
        session.at.stored, sessions_.wanted().vocab,
        [this, commit, streams = request.streams](const Archive::Loaded& loaded) {
          repeat(streams, loaded, commit);
          queue_.count_removed(1);
        });
    return true;
  }
  if (request.expected_epoch && *request.expected_epoch != session.epoch) {
    return refuse(EndReason::kConflict,
                  fmt::format("session \"{}\" has epoch {}, expected {}: read it again",
                              request.session, session.epoch, *request.expected_epoch));
  }
  if (session.tier() != Tier::kDisk) return false;
  const auto read = std::make_shared<DiskRead>();
  const SessionStore::Room room = sessions_.bring(session, [read](const Archive::Loaded& loaded) {
    read->under_way = false;
    read->error = loaded.error;
    read->reason = loaded.reason;
  });
  if (room == SessionStore::Room::kNone) {
    return refuse(EndReason::kNoMemory,
                  "not enough host memory for the session's state, which is on the disk: try again "
                  "later, or raise --session-memory");
  }
  read->under_way = session.residency == Residency::kLoading;
  wait_for_disk(one, read, nullptr);
  return true;
}

// Starts to read the prompt's prefix if it is on disk or in the store alone. True: the request
// waits for it.
bool WaitingLine::fetch_prefix(Line& one, const EngineLoad& load, Clock::time_point now) {
  const Sequence& waiting = *one.front();
  const Request& request = waiting.request;
  const bool fresh = waiting.starts_fresh() && !(waiting.session && waiting.session->busy);
  if (!fresh || request.more_prompt || request.sampling.prompt_logprobs >= 0) return false;
  const auto read = std::make_shared<DiskRead>(DiskRead{.under_way = true, .of_prefix = true});
  const auto done = [read] { read->under_way = false; };
  if (!prefixes_.fetch(waiting.prefix_scope(), waiting.prompt.ids, request.prefix,
                       load.prompt_rate(is_shared(now)), done)) {
    return false;
  }
  wait_for_disk(one, read, waiting.session);
  if (waiting.session != nullptr) sessions_.set_busy(*waiting.session, true);
  return true;
}

// session: marked busy for the request meanwhile; null: none, and it is looked up again.
void WaitingLine::wait_for_disk(Line& one, std::shared_ptr<DiskRead> read, Session* session) {
  one.front()->disk_read = std::move(read);
  one.front()->session = session;
  reading_.splice(reading_.end(), one);
}

// Retries the commands, and the requests whose reads have ended.
void WaitingLine::resume_parked(const EngineLoad& load, Clock::time_point now) {
  for (SessionCommand& command : std::exchange(parked_commands_, {})) {
    run_command(command, load, now);
  }
  for (Line waiting = std::exchange(reading_, {}); !waiting.empty();) {
    Line one;
    one.splice(one.begin(), waiting, waiting.begin());
    Sequence& sequence = *one.front();
    if (sequence.disk_read->under_way) {
      reading_.splice(reading_.end(), one);
      continue;
    }
    if (sequence.replay) {
      resume_replay(one, now);
      continue;
    }
    const auto read = std::exchange(sequence.disk_read, nullptr);
    Session* const session = std::exchange(sequence.session, nullptr);
    if (session != nullptr) sessions_.set_busy(*session, false);
    // A request on a lost state is refused with the others.
    if (read->error.empty() || read->reason == EndReason::kStateLost) {
      queue_or_refuse(one, read->of_prefix, load, now);
    } else {
      refuse(sequence.request,
             {.reason = read->reason,
              .message = fmt::format("the state of session \"{}\" cannot be read: {}",
                                     sequence.request.session, read->error)});
    }
  }
}

}  // namespace recurve
