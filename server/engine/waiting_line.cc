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

// Of the time that a first token may take, as nothing takes exactly what was expected, and a step
// or two are under way already.
constexpr double kExpectedShare = 0.8;
// Of that time, what others may keep a request waiting in any case: one whose prompt alone takes
// too long is served too.
constexpr double kLeastShare = 0.25;

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// The picture that running sequences give; what waits is still to be added.
Ahead ahead_of_all(const EngineLoad& load) {
  Ahead ahead{.hold_seconds = load.turnover.hold_seconds()};
  ahead.prompt_rate = load.prompt_rate();
  const double per_token = load.pace.step_seconds();
  for (const auto& sequence : load.running) {
    const double prompt = sequence->prompt && ahead.prompt_rate > 0
                              ? static_cast<double>(sequence->left()) / ahead.prompt_rate
                              : 0;
    const int64_t may = sequence->sampling.max_tokens - sequence->generated;
    const double seconds = prompt + load.turnover.expected_tokens(may) * per_token;
    ahead.releases.insert(ahead.releases.end(), 1 + sequence->siblings.size(), seconds);
  }
  return ahead;
}

// What goes before a prompt, in tokens and in slots: what came first; or, where it is far shorter
// than some of that, twice what is shorter still, as it has every second turn.
class Before {
 public:
  Before(int64_t place, int64_t tokens) : place_(place), tokens_(tokens) {}
  void add(int64_t place, int64_t tokens, int slots) {
    if (place < place_) first_.add(tokens, slots);
    if (tokens < tokens_) shorter_.add(tokens, slots);
    passes_ |= is_far_shorter(tokens_, tokens);
  }
  // Its own go by turns too while it passes.
  int64_t tokens() const {
    return passes_ ? std::min(first_.tokens, 2 * shorter_.tokens + tokens_) : first_.tokens;
  }
  int slots() const {
    return passes_ ? std::min(first_.slots, 2 * shorter_.slots + 1) : first_.slots;
  }

 private:
  struct Sum {
    int64_t tokens = 0;
    int slots = 0;
    void add(int64_t more_tokens, int more_slots) {
      tokens += more_tokens;
      slots += more_slots;
    }
  };
  const int64_t place_, tokens_;
  Sum first_, shorter_;
  bool passes_ = false;
};

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

double EngineLoad::prompt_rate() const {
  const auto decodes = std::count_if(running.begin(), running.end(),
                                     [](const auto& sequence) { return !sequence->prompt; });
  return pace.prompt_rate(static_cast<int>(decodes));
}

void WaitingLine::take_arrivals(const EngineLoad& load, Clock::time_point now) {
  AdmissionQueue::Arrivals arrivals = queue_.take();
  for (SessionCommand& command : arrivals.commands) command.done(sessions_.run(command, now));
  for (Request& request : arrivals.requests) {
    arrive(std::move(request), load, now);
  }
}

void WaitingLine::arrive(Request request, const EngineLoad& load, Clock::time_point now) {
  CHECK(request.session.empty() || request.streams.size() == 1);
  CHECK(!request.more_prompt || (request.session.empty() && request.streams.size() == 1));
  CHECK(!request.more_prompt || !request.prompt.empty());
  Session* session = request.session.empty() ? nullptr : sessions_.find(request.session);
  Input input = input_of(request, session);
  Ending refused = refusal(request, session, input);
  const int64_t place = place_of(request.arrival, request.priority);
  Waiting waiting{std::move(request), std::move(input), session, place};
  if (refused.message.empty()) refused = overload(waiting, load, now);
  if (!refused.message.empty()) {
    for (auto& stream : waiting.request.streams) stream->finish(refused);
    queue_.left(1);
    return;
  }
  line_up(std::move(waiting));
}

void WaitingLine::line_up(Waiting waiting) {
  Session* session = waiting.session;
  if (session != nullptr) session->busy = true;
  const bool all_there = waiting.request.more_prompt == nullptr;
  const Accepted accepted{.prompt_tokens = all_there ? static_cast<int64_t>(waiting.tokens()) : 0,
                          .session_position = session ? session->at.position : 0};
  for (auto& stream : waiting.request.streams) stream->accept(accepted);
  const auto behind = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const Waiting& other) {
    return other.place <= waiting.place;
  });
  waiting_.insert(behind.base(), std::move(waiting));
}

// Seconds that others keep it waiting.
double WaitingLine::wait_of(const Waiting& waiting, const EngineLoad& load) const {
  Ahead ahead = ahead_of_all(load);
  Before in_line(waiting.place, waiting.tokens()), prompts = in_line;
  for (const auto& sequence : load.running) {
    if (sequence->prompt) prompts.add(sequence->place, sequence->left(), 0);
  }
  for (const Waiting& other : waiting_) {
    in_line.add(other.place, other.tokens(), other.slots());
    prompts.add(other.place, other.tokens(), 0);
  }
  ahead.prompt_tokens = static_cast<double>(prompts.tokens());
  const bool has_slot = waiting.session != nullptr && waiting.session->slot;
  const int in_use = static_cast<int>(ahead.releases.size());
  ahead.slots_missing = in_line.slots() + (has_slot ? 0 : waiting.slots()) + in_use - pool_.slots();
  return expected_wait(std::move(ahead));
}

double WaitingLine::expected_seconds(const EngineLoad& load, Clock::time_point now) const {
  Waiting probe{{}, {}, nullptr, place_of(now, 0)};
  probe.request.streams.resize(1);
  probe.input.ids.resize(1);
  return wait_of(probe, load);
}

// An ending with a message if others would keep the request waiting for longer than they may.
Ending WaitingLine::overload(const Waiting& waiting, const EngineLoad& load,
                             Clock::time_point now) const {
  if (most_seconds_ == 0) return {};
  const double wait = wait_of(waiting, load);
  if (wait == 0) return {};
  const double rate = load.prompt_rate();
  const double own = rate > 0 ? static_cast<double>(waiting.tokens()) / rate : 0;
  const auto refuse = [&](double excess, const std::string& wanted) {
    return Ending{.why = Finish::kOverloaded,
                  .message = fmt::format("its first token would come after about {:.2g} s, and {}: "
                                         "try again later, or give it a higher priority",
                                         wait + own, wanted),
                  .retry_seconds = excess};
  };
  const double most = kExpectedShare * most_seconds_;
  const double late = wait - std::max(most - own, kLeastShare * most);
  if (late > 0) return refuse(late, fmt::format("is to be expected within {:.2g}", most));
  if (!waiting.request.deadline) return {};
  const double left = seconds_between(now, *waiting.request.deadline);
  if (wait + own <= left) return {};
  return refuse(wait + own - left, fmt::format("its deadline is in {:.2g}", left));
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
    const auto given_up = patience_ends(waiting);
    if (request.streams.front()->wishes().cancelled) {
      why = Finish::kCancelled;
    } else if (request.deadline && *request.deadline <= now) {
      why = Finish::kDeadline;
    } else if (given_up && *given_up <= now) {
      why = Finish::kOverloaded;
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
  if (why == Finish::kOverloaded) {
    ending.message = fmt::format(
        "it has waited for {:.1f} s, and others are more important: try "
        "again later, or give it a higher priority",
        ending.queue_seconds);
    ending.retry_seconds = most_seconds_;
  }
  if (waiting.session != nullptr) {
    waiting.session->busy = false;
    ending.session_position = waiting.session->at.position;
  }
  for (const auto& stream : waiting.request.streams) stream->finish(ending);
  queue_.left(1);
}

std::unique_ptr<Sequence> WaitingLine::admit_next(Clock::time_point now) {
  if (waiting_.empty()) return nullptr;
  const auto next = next_in_turn();
  const bool has_slot = next->session != nullptr && next->session->slot;
  if (!has_slot && !make_room(next->request.streams.size())) return nullptr;
  turn_of_shortest_ = !turn_of_shortest_;
  auto sequence = start(std::move(*next), now);
  waiting_.erase(next);
  queue_.left(1);
  return sequence;
}

// The first; by turns the shortest, if that is far shorter.
std::deque<WaitingLine::Waiting>::iterator WaitingLine::next_in_turn() {
  const auto first = waiting_.begin();
  if (!turn_of_shortest_) return first;
  const auto shortest =
      std::min_element(waiting_.begin(), waiting_.end(),
                       [](const Waiting& a, const Waiting& b) { return a.tokens() < b.tokens(); });
  const bool may_pass =
      shortest->slots() == 1 && is_far_shorter(shortest->tokens(), first->tokens());
  return may_pass ? shortest : first;
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
               .read_patience = request.read_patience,
               .arrival = request.arrival,
               .started = now,
               .priority = request.priority,
               .place = waiting.place});
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
  const auto consider = [&](const std::optional<Clock::time_point>& when) {
    if (when && (!next || *when < *next)) next = when;
  };
  for (const Waiting& waiting : waiting_) {
    consider(waiting.request.deadline);
    consider(patience_ends(waiting));
  }
  return next;
}

std::optional<Clock::time_point> WaitingLine::patience_ends(const Waiting& waiting) const {
  if (most_seconds_ == 0) return std::nullopt;
  return waiting.request.arrival + to_duration(2 * most_seconds_);
}

}  // namespace recurve
