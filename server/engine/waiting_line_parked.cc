// WaitingLine: requests that wait for a disk before they are queued, because the state of their
// session, the prefix of their prompt or the answer to a repeated request is there; and session
// commands that wait for memory to be freed.
#include <fmt/format.h>

#include <utility>

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
  stream.accept({.prompt_tokens = answer.prompt_tokens,
                 .session_position = answer.before,
                 .seed = answer.seed});
  for (const int32_t id : header.answer_ids) stream.push({.id = id});
  stream.finish({.reason = reason_from(answer.reason),
                 .stop_id = answer.stop_id,
                 .prompt_tokens = answer.prompt_tokens,
                 .generated_tokens = static_cast<int64_t>(header.answer_ids.size()),
                 .session_position = header.position,
                 .commit = commit,
                 .recorded = true});
}

}  // namespace

// True if the request has ended or waits for a disk.
bool WaitingLine::check_session(Request& request, Session& session) {
  const auto refuse = [&](EndReason reason, std::string message) {
    request.streams.front()->finish({.reason = reason, .message = std::move(message)});
    queue_.count_removed(1);
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
  const auto parked = std::make_shared<Parked>();
  const SessionStore::Room room = sessions_.bring(session, [parked](const Archive::Loaded& loaded) {
    parked->loading = false;
    parked->error = loaded.error;
    parked->reason = loaded.reason;
  });
  if (room == SessionStore::Room::kNone) {
    return refuse(
        EndReason::kNoMemory,
        "there is no host memory for the session's state, which is on the disk: try again "
        "later, or raise --session-memory");
  }
  parked->loading = session.residency == Residency::kLoading;
  parked->request = std::move(request);
  parked_.push_back(parked);
  return true;
}

// Retries the commands, and the requests whose reads have ended.
void WaitingLine::resume_parked(const EngineLoad& load, Clock::time_point now) {
  for (SessionCommand& command : std::exchange(parked_commands_, {})) run_command(command, now);
  for (const auto& parked : std::exchange(parked_, {})) {
    if (parked->loading) {
      parked_.push_back(parked);
      continue;
    }
    release_parked(*parked);
    // arrive() refuses a request on a lost state.
    if (parked->error.empty() || parked->reason == EndReason::kStateLost) {
      arrive(parked->request, load, now, parked->has_prefix);
    } else {
      parked->request.streams.front()->finish(
          {.reason = parked->reason,
           .message = fmt::format("the state of session \"{}\" cannot be read: {}",
                                  parked->request.session, parked->error)});
      queue_.count_removed(1);
    }
  }
}

// The request no longer waits for a disk.
void WaitingLine::release_parked(Parked& parked) {
  if (parked.session != nullptr) sessions_.set_busy(*std::exchange(parked.session, nullptr), false);
}

// A read that has begun is not cancelled.
void WaitingLine::drop_unwanted_parked(Clock::time_point now) {
  std::erase_if(parked_, [&](const std::shared_ptr<Parked>& parked) {
    const Request& request = parked->request;
    const bool late = request.deadline && *request.deadline <= now;
    const bool cancelled = request.streams.front()->signals().cancelled;
    if (!late && !cancelled) return false;
    release_parked(*parked);
    for (const auto& stream : request.streams) {
      stream->finish({.reason = cancelled ? EndReason::kCancelled : EndReason::kDeadline});
    }
    queue_.count_removed(1);
    return true;
  });
}

void WaitingLine::drop_parked(EndReason reason) {
  for (SessionCommand& command : std::exchange(parked_commands_, {})) {
    command.done({.reason = EndReason::kDraining});
  }
  for (const auto& parked : std::exchange(parked_, {})) {
    release_parked(*parked);
    for (const auto& stream : parked->request.streams) stream->finish({.reason = reason});
    queue_.count_removed(1);
  }
}

}  // namespace recurve
