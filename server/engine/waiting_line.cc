#include "server/engine/waiting_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

bool is_fresh(const Session* session) {
  return session == nullptr || (session->at.position == 0 && !session->at.pending);
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void WaitingLine::take_arrivals(Clock::time_point now) {
  AdmissionQueue::Arrivals arrivals = queue_.take();
  for (SessionCommand& command : arrivals.commands) command.done(sessions_.run(command, now));
  for (Request& request : arrivals.requests) arrive(std::move(request));
}

void WaitingLine::arrive(Request request) {
  CHECK(request.session.empty() || request.streams.size() == 1);
  CHECK(!request.more_prompt || (request.session.empty() && request.streams.size() == 1));
  CHECK(!request.more_prompt || !request.prompt.empty());
  Session* session = request.session.empty() ? nullptr : sessions_.find(request.session);
  Input input = input_of(request, session);
  const Ending refused = refusal(request, session, input);
  if (!refused.message.empty()) {
    for (auto& stream : request.streams) stream->finish(refused);
    queue_.left(1);
    return;
  }
  if (session != nullptr) session->busy = true;
  const bool all_there = request.more_prompt == nullptr;
  const Accepted accepted{.prompt_tokens = all_there ? static_cast<int64_t>(input.ids.size()) : 0,
                          .session_position = session ? session->at.position : 0};
  for (auto& stream : request.streams) stream->accept(accepted);
  waiting_.push_back({std::move(request), std::move(input), session});
}

// What the state still owes, BOS where it is fresh, the prompt.
WaitingLine::Input WaitingLine::input_of(const Request& request, const Session* session) const {
  const bool fresh = is_fresh(session);
  const auto& prompt =
      !fresh && request.continued_prompt ? *request.continued_prompt : request.prompt;
  Input input;
  input.ids.reserve(prompt.size() + 2);
  if (!fresh && session->at.pending) {
    const int32_t pending = *session->at.pending;
    input.owed = !contains(request.replaces_pending, pending);
    if (input.owed) {
      input.ids.push_back(pending);
    } else {
      input.replaced = pending;
    }
  }
  if (fresh && request.bos) input.ids.push_back(*request.bos);
  for (const int32_t id : prompt) input.ids.push_back(id);
  return input;
}

// An ending with a message if the request cannot be served.
Ending WaitingLine::refusal(const Request& request, const Session* session,
                            const Input& input) const {
  const auto refuse = [](Finish why, std::string message) {
    return Ending{.why = why, .message = std::move(message)};
  };
  if (!request.session.empty() && session == nullptr) {
    return refuse(Finish::kNoSession,
                  fmt::format("there is no session \"{}\": open it first", request.session));
  }
  if (session != nullptr && session->busy) {
    return refuse(Finish::kSessionBusy,
                  fmt::format("session \"{}\" is serving a request: wait for its end, cancel it, "
                              "or fork the session",
                              request.session));
  }
  const std::string& refused =
      is_fresh(session) ? request.start_refusal : request.continuation_refusal;
  if (!refused.empty()) return refuse(Finish::kInvalid, refused);
  if (input.ids.empty()) {
    const bool begun = session != nullptr && session->at.position > 0;
    return refuse(Finish::kInvalid,
                  fmt::format("there is nothing to absorb: the prompt is empty{}",
                              begun ? ", and the session has no pending token" : ""));
  }
  if (request.streams.size() > static_cast<size_t>(pool_.slots())) {
    return refuse(Finish::kInvalid, fmt::format("n is {}, but there are {} slots",
                                                request.streams.size(), pool_.slots()));
  }
  return {};
}

void WaitingLine::drop_unwanted(Clock::time_point now) {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const Request& request = waiting.request;
    Finish why;
    if (request.streams.front()->wishes().cancelled) {
      why = Finish::kCancelled;
    } else if (request.deadline && *request.deadline <= now) {
      why = Finish::kDeadline;
    } else {
      return false;
    }
    drop(waiting, why, now);
    return true;
  });
}

void WaitingLine::drop_all(Finish why, Clock::time_point now) {
  for (const Waiting& waiting : waiting_) drop(waiting, why, now);
  waiting_.clear();
}

void WaitingLine::drop(const Waiting& waiting, Finish why, Clock::time_point now) {
  Ending ending{.why = why, .queue_seconds = seconds_between(waiting.request.arrival, now)};
  if (waiting.session != nullptr) {
    waiting.session->busy = false;
    ending.session_position = waiting.session->at.position;
  }
  for (const auto& stream : waiting.request.streams) stream->finish(ending);
  queue_.left(1);
}

std::unique_ptr<Sequence> WaitingLine::admit_next(Clock::time_point now) {
  if (waiting_.empty()) return nullptr;
  const Waiting& head = waiting_.front();
  const bool has_slot = head.session != nullptr && head.session->slot;
  if (!has_slot && !make_room(head.request.streams.size())) return nullptr;
  auto sequence = start(std::move(waiting_.front()), now);
  waiting_.pop_front();
  queue_.left(1);
  return sequence;
}

// Frees slots by moving sessions out of theirs. False if that is not enough.
bool WaitingLine::make_room(size_t slots) {
  while (static_cast<size_t>(pool_.free_slots()) < slots) {
    if (!sessions_.evict_one()) return false;
  }
  return true;
}

std::unique_ptr<Sequence> WaitingLine::start(Waiting waiting, Clock::time_point now) {
  Request& request = waiting.request;
  Session* session = waiting.session;
  auto sequence = std::make_unique<Sequence>(
      Sequence{.sampling = std::move(request.sampling),
               .stream = request.streams.front(),
               .deadline = request.deadline,
               .wait_for_acknowledgement = request.wait_for_acknowledgement,
               .session = session,
               .slot = session ? sessions_.check_out(*session) : std::move(*pool_.acquire()),
               .input = std::move(waiting.input.ids),
               .owed = waiting.input.owed ? size_t{1} : 0,
               .replaced = waiting.input.replaced,
               .position = session ? session->at.position : 0,
               .history = session ? session->at.history : TokenHistory(),
               .feed = std::move(request.more_prompt),
               .arrival = request.arrival,
               .started = now,
               .priority = request.priority,
               .place = place_of(request.arrival, request.priority)});
  sequence->history.begin_request();
  sequence->prompt_tokens = static_cast<int64_t>(sequence->input.size());
  for (size_t c = 1; c < request.streams.size(); ++c) {
    sequence->siblings.push_back({request.streams[c], std::move(*pool_.acquire())});
  }
  metrics_.observe_queue(seconds_between(request.arrival, now));
  return sequence;
}

std::optional<Clock::time_point> WaitingLine::next_deadline() const {
  std::optional<Clock::time_point> next;
  for (const Waiting& waiting : waiting_) {
    const auto& deadline = waiting.request.deadline;
    if (deadline && (!next || *deadline < *next)) next = deadline;
  }
  return next;
}

}  // namespace recurve
