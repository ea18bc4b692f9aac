#include "server/engine/waiting_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/check.h"
#include "server/engine/request_digest.h"

namespace recurve {
namespace {

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

const PromptReading& reading_of(const Sequence& waiting) {
  const Request& request = waiting.request;
  const bool continues = !waiting.starts_text() && request.continued_prompt;
  return continues ? *request.continued_prompt : request.prompt;
}

// The session's pending token, unless the prompt replaces it, and the prompt.
PromptPhase prompt_of(const Sequence& waiting) {
  const PromptReading& reading = reading_of(waiting);
  const Snapshot* const begin = waiting.begin();
  PromptPhase prompt;
  prompt.ids.reserve(reading.ids.size() + 1);
  if (begin != nullptr && begin->pending) {
    const int32_t pending = *begin->pending;
    if (std::ranges::count(reading.replaces_pending, pending) == 0) {
      prompt.has_pending = 1;
      prompt.ids.push_back(pending);
    } else {
      prompt.replaced_pending = pending;
    }
  }
  const bool has_bos = &reading == &waiting.request.prompt && waiting.request.begins_with_bos;
  const ptrdiff_t skipped = has_bos && !waiting.starts_fresh() ? 1 : 0;
  prompt.ids.insert(prompt.ids.end(), reading.ids.begin() + skipped, reading.ids.end());
  prompt.tokens = static_cast<int64_t>(prompt.ids.size());
  prompt.rank = rank_of(waiting.request.arrival, waiting.request.priority);
  return prompt;
}

// Why the request, which names it in `field`, cannot have it in the session, which was opened with
// `has`; empty: it can. Both are initial states or adapters; null: none.
template <typename Bound>
std::string difference(const char* field, const Bound* wanted, const Bound* has,
                       std::string_view session) {
  if (wanted == nullptr || (has != nullptr && has->id == wanted->id)) return {};
  const std::string& name = wanted->id.name;
  std::string began = "without one";
  if (has != nullptr) {
    began = has->id.name == name ? "with another file of that name"
                                 : fmt::format("with \"{}\"", has->id.name);
  }
  return fmt::format(
      "{} is \"{}\", but session \"{}\" began {}: leave it out, or open another session with it",
      field, name, session, began);
}

std::string difference(const Request& request, const Session& session) {
  const Binding &wanted = request.binding, &has = session.binding;
  std::string other = difference("initial_state", wanted.initial_state.get(),
                                 has.initial_state.get(), session.name);
  if (!other.empty()) return other;
  return difference("adapter", wanted.adapter.get(), has.adapter.get(), session.name);
}

}  // namespace

void WaitingLine::take_arrivals(const EngineLoad& load, Clock::time_point now) {
  // First: a wake-up of the queue after this take() causes another step.
  arrivals_ = queue_.take();
  const bool has_prefix = prefixes_.advance(now);
  if (sessions_.advance() || has_prefix) resume_parked(load, now);
  for (SessionCommand& command : arrivals_.commands) run_command(command, load, now);
  for (Request& request : arrivals_.requests) arrive(request, load, now);
  arrivals_ = {};
}

void WaitingLine::run_command(SessionCommand& command, const EngineLoad& load,
                              Clock::time_point now) {
  SessionResult result;
  try {
    result = sessions_.run(command, now);
  } catch (const std::bad_alloc&) {
    result.reason = EndReason::kExhausted;
    result.message = "out of memory: close sessions or marks";
  }
  if (result.progress == SessionResult::Progress::kWaiting) {
    parked_commands_.push_back(std::move(command));
    return;
  }
  const InitialState* const begin = command.binding.initial_state.get();
  if (begin != nullptr && result.reason == EndReason::kDone) {  // its commit may be under way
    metrics_.add_initial_state(begin->id.name);
  }
  if (result.progress == SessionResult::Progress::kCommitting) return;
  if (result.progress == SessionResult::Progress::kAbsorbing) {
    std::unique_ptr<Replay> replay = sessions_.take_replay();
    replay->command = std::move(command);
    return arrive(std::move(replay), load, now);
  }
  std::exchange(command.done, nullptr)(std::move(result));
}

void WaitingLine::arrive(Request& request, const EngineLoad& load, Clock::time_point now) {
  CHECK(request.session.empty() || request.streams.size() == 1);
  CHECK(!request.more_prompt || (request.session.empty() && request.streams.size() == 1));
  CHECK(!request.more_prompt || !request.prompt.ids.empty());
  Line one;
  try {
    one.push_back(std::make_unique<Sequence>());
  } catch (const std::bad_alloc&) {
    return refuse(request, {.reason = EndReason::kNoMemory});
  }
  one.front()->request = std::move(request);
  queue_or_refuse(one, false, load, now);
}

void WaitingLine::queue_or_refuse(Line& one, bool has_prefix, const EngineLoad& load,
                                  Clock::time_point now) {
  Sequence& waiting = *one.front();
  const Request& request = waiting.request;
  StreamEnd refused;
  try {
    if (!request.session.empty()) {
      waiting.session = sessions_.find(request.session, request.caller.tenant);
    }
    if (waiting.session != nullptr && !waiting.session->busy && check_session(one)) return;
    waiting.prompt = prompt_of(waiting);
    fit_default(waiting);
    refused = refusal(waiting);
    if (refused.message.empty()) refused = refuse_growth(waiting);
    if (refused.message.empty() && !has_prefix && fetch_prefix(one, load, now)) return;
    if (refused.message.empty()) refused = overload(waiting, load, now);
    if (refused.message.empty()) return line_up(one);
  } catch (const std::bad_alloc&) {
    refused = {.reason = EndReason::kNoMemory};
  }
  refuse(request, refused);
}

void WaitingLine::refuse(const Request& request, const StreamEnd& ending) {
  for (const auto& stream : request.streams) stream->finish(ending);
  queue_.count_removed(1);
}

void WaitingLine::line_up(Line& one) {
  reserve_turns();
  const Sequence& waiting = *one.front();
  if (uses_.size() >= kMostUses) forget_uses();
  const Identity& caller = waiting.request.caller;
  TenantUse& use = use_of(caller.share());  // creates it
  use.asked = std::max(use.asked, seconds_of(waiting.request.arrival));
  use.weight = caller.limits.weight;
  use.most = most_slots_of(caller);
  Session* session = waiting.session;
  const bool all_there = waiting.request.more_prompt == nullptr;
  const Accepted accepted{.prompt_tokens = all_there ? waiting.prompt.tokens : 0,
                          .session_position = waiting.begin_position(),
                          .continues_text = !waiting.starts_text()};
  if (!waiting.requeued) {
    for (auto& stream : waiting.request.streams) stream->accept(accepted);
  }
  if (session != nullptr) sessions_.set_busy(*session, true);
  insert(one);
}

// Capacity for one more in the line.
void WaitingLine::reserve_turns() {
  if (in_turn_.capacity() <= waiting_.size()) in_turn_.reserve(2 * waiting_.size() + 8);
  if (in_turn_at_.capacity() <= waiting_.size()) in_turn_at_.reserve(2 * waiting_.size() + 8);
  if (preempted_groups_.capacity() <= waiting_.size()) {
    preempted_groups_.reserve(2 * waiting_.size() + 8);
  }
}

void WaitingLine::insert(Line& one) {
  const Sequence& waiting = *one.front();
  const auto behind = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const auto& other) {
    return other->prompt.rank <= waiting.prompt.rank;
  });
  waiting_.splice(behind.base(), one);
}

// With a message if the request cannot be served.
StreamEnd WaitingLine::refusal(const Sequence& waiting) const {
  const Request& request = waiting.request;
  const Session* const session = waiting.session;
  const auto refuse = [](EndReason reason, std::string message) {
    return StreamEnd{.reason = reason, .message = std::move(message)};
  };
  if (!request.session.empty() && session == nullptr) {
    return refuse(EndReason::kNoSession,
                  fmt::format("there is no session \"{}\": open it first", request.session));
  }
  if (session != nullptr && session->busy) {
    return refuse(EndReason::kSessionBusy,
                  fmt::format("session \"{}\" is serving a request: wait for its end, cancel it, "
                              "or fork the session",
                              request.session));
  }
  if (request.durability == Durability::kLocal && !(session != nullptr && session->durable())) {
    return refuse(EndReason::kInvalid,
                  fmt::format("session \"{}\" is not durable, but the request asks for durability: "
                              "open the session with durability local",
                              request.session));
  }
  if (session != nullptr) {
    if (std::string other = difference(request, *session); !other.empty()) {
      return refuse(EndReason::kInvalid, std::move(other));
    }
    if (const auto missing = sessions_.without_adapter(*session)) {
      return refuse(missing->reason, missing->message);
    }
  }
  const std::string& refused = reading_of(waiting).refusal;
  if (!refused.empty()) return refuse(EndReason::kInvalid, refused);
  if (waiting.prompt.ids.empty()) {
    const char* const begun = waiting.begin_position() == 0 ? ""
                              : session != nullptr ? ", and the session has no pending token"
                                                   : ", and the initial state has no pending token";
    return refuse(EndReason::kInvalid,
                  fmt::format("the prompt is empty{}: send text or ids", begun));
  }
  const std::string too_long = too_long_for(waiting);
  if (!too_long.empty()) return refuse(EndReason::kInvalid, too_long);
  if (request.streams.size() > static_cast<size_t>(pool_.slots())) {
    return refuse(EndReason::kInvalid, fmt::format("n is {}, but there are {} slots",
                                                   request.streams.size(), pool_.slots()));
  }
  return {};
}

// With a message if there is no memory for what the session's state may become.
StreamEnd WaitingLine::refuse_growth(const Sequence& waiting) {
  if (waiting.session == nullptr) return {};
  const Request& request = waiting.request;
  const int64_t tokens = waiting.session->at.position +
                         static_cast<int64_t>(waiting.prompt.ids.size()) +
                         request.sampling.max_tokens;
  std::string why = sessions_.plan_growth(*waiting.session, request.caller, tokens);
  if (why.empty()) return {};
  return {.reason = EndReason::kExhausted, .message = std::move(why)};
}

// A default of max_tokens is at most the rest of the tokens that a state may have.
void WaitingLine::fit_default(Sequence& waiting) const {
  if (!waiting.request.max_tokens_is_default) return;
  const int64_t absorbed = waiting.begin_position();
  const int64_t rest = most_tokens_of(waiting.request.caller) - absorbed -
                       static_cast<int64_t>(waiting.prompt.ids.size());
  if (rest < 1) return;  // refused
  int32_t& most = waiting.request.sampling.max_tokens;
  most = static_cast<int32_t>(std::min<int64_t>(most, rest));
}

// An error if the request could exceed the tokens that a state may have; else empty.
std::string WaitingLine::too_long_for(const Sequence& waiting) const {
  const Identity& caller = waiting.request.caller;
  const int64_t absorbed = waiting.begin_position();
  const int64_t tokens =
      static_cast<int64_t>(waiting.prompt.ids.size()) + waiting.request.sampling.max_tokens;
  const int64_t most = most_tokens_of(caller);
  if (absorbed + tokens <= most) return {};
  const StateLayout& layout = pool_.layout();
  const auto pages = static_cast<size_t>(StateLayout::pages(absorbed + tokens));
  const size_t bytes = pages * layout.page_bytes();
  std::string limit = fmt::format("a state has at most {} tokens", most);
  if (layout.grows()) limit = fmt::format("the model's context is {} tokens", most);
  if (most < most_tokens_) {
    limit = fmt::format("page_bytes of tenant \"{}\" holds {} tokens: raise it to {}",
                        caller.tenant_name, most, bytes);
  } else if (layout.grows() && most == pool_.pages() * kPageTokens) {
    limit = fmt::format("--kv-memory holds {} tokens: raise it to {}", most, bytes);
  }
  return fmt::format(
      "prompt and max_tokens must be at most {} tokens, got {}: the {} has {}, and {}",
      std::max<int64_t>(most - absorbed, 0), tokens,
      waiting.session == nullptr && absorbed > 0 ? "initial state" : "session", absorbed, limit);
}

void WaitingLine::drop_unwanted(Clock::time_point now) {
  for (Line* const line : {&reading_, &waiting_}) {
    std::erase_if(*line, [&](auto& waiting) { return drop_if_unwanted(waiting, now); });
  }
}

bool WaitingLine::drop_if_unwanted(std::unique_ptr<Sequence>& waiting, Clock::time_point now) {
  if (waiting->is_preempted()) {
    waiting->apply_signals(now);
    if (waiting->ended) drop(waiting, {}, now);
    return waiting == nullptr;
  }
  const Request& request = waiting->request;
  const auto given_up = patience_ends(*waiting);
  if (request.streams.front()->signals().cancelled) {
    drop(waiting, EndReason::kCancelled, now);
  } else if (request.deadline && *request.deadline <= now) {
    drop(waiting, EndReason::kDeadline, now);
  } else if (given_up && *given_up <= now) {
    drop(waiting, EndReason::kOverloaded, now);
  } else {
    return false;
  }
  return true;
}

void WaitingLine::drop_all(EndReason reason, Clock::time_point now) {
  for (Line* const line : {&reading_, &waiting_}) {
    for (auto& waiting : *line) drop(waiting, reason, now);
    line->clear();
  }
  for (SessionCommand& command : std::exchange(parked_commands_, {})) {
    command.done({.reason = EndReason::kDraining});
  }
  drop_arrivals(reason);
  arrivals_ = queue_.take();
  drop_arrivals(reason);
}

void WaitingLine::drop_arrivals(EndReason reason) {
  for (SessionCommand& command : arrivals_.commands) {
    if (!command.done) continue;
    std::exchange(command.done, nullptr)({.reason = EndReason::kDraining});
  }
  for (const Request& request : arrivals_.requests) {
    for (const auto& stream : request.streams) stream->finish({.reason = reason});
  }
  arrivals_ = {};
}

void WaitingLine::drop(std::unique_ptr<Sequence>& sequence, EndReason reason,
                       Clock::time_point now) {
  const Sequence& waiting = *sequence;
  if (waiting.is_preempted()) {
    sequence->end(reason);
    ended_.push_back(std::move(sequence));
    queue_.count_removed(1);
    return;
  }
  StreamEnd ending{.reason = reason,
                   .queue_seconds = seconds_between(waiting.request.arrival, now)};
  if (reason == EndReason::kOverloaded) {
    ending.message = fmt::format(
        "overloaded: the request has waited for {:.1f} s without a slot: try again later, or "
        "set a higher priority",
        ending.queue_seconds);
    ending.retry_seconds = bound_.seconds;
  }
  if (waiting.replay) {
    sessions_.cancel_replay(*waiting.replay, {.reason = reason, .message = ending.message});
  } else if (waiting.session != nullptr) {
    sessions_.set_busy(*waiting.session, false);
    ending.session_position = waiting.session->at.position;
  }
  refuse(waiting.request, ending);
}

std::unique_ptr<Sequence> WaitingLine::admit_next(Clock::time_point now, int running,
                                                  NewRequests starts) {
  shortage_.reset();
  while (!waiting_.empty()) {
    const auto next = next_in_turn(now, starts);
    if (next == waiting_.end()) return nullptr;
    std::unique_ptr<Sequence> sequence;
    try {
      if (!free_slot_for(**next) || !free_pages_for(**next, running)) return nullptr;
      start(**next, now);
      turn_of_shortest_ = !turn_of_shortest_;
      sequence = std::move(*next);
      count_slot(*sequence);
      use_of(sequence->request.caller.share()).turn = ++turns_;
      queue_.count_removed(1);
    } catch (const std::bad_alloc&) {
      drop(*next, EndReason::kNoMemory, now);
    }
    waiting_.erase(next);
    if (sequence != nullptr) return sequence;
  }
  return nullptr;
}

Waiter WaitingLine::waiter_of(const Sequence& waiting) const {
  const Identity& caller = waiting.request.caller;
  return {.rank = waiting.prompt.rank,
          .tokens = waiting.is_preempted() ? waiting.unabsorbed() : waiting.prompt.tokens,
          .slots = static_cast<int>(waiting.request.streams.size()),
          .has_slot = waiting.has_slot(),
          .tenant = caller.share(),
          .weight = caller.limits.weight,
          .most_slots = most_slots_of(caller)};
}

// waiting_.end() if no waiting request may have a slot.
WaitingLine::Line::iterator WaitingLine::next_in_turn(Clock::time_point now, NewRequests starts) {
  const SlotUse use(uses_, pool_.slots(), seconds_of(now));
  const Sequence* const keeper = next_to_keep(use);
  preempted_groups_.clear();
  const auto has_preempted = [&](TenantId group) {
    return std::ranges::find(preempted_groups_, group) != preempted_groups_.end();
  };
  if (starts == NewRequests::kOfOthers) {
    for (const auto& waiting : waiting_) {
      const TenantId group = waiting->request.caller.group();
      if (waiting->is_preempted() && !has_preempted(group)) preempted_groups_.push_back(group);
    }
  }
  const auto starts_new = [&](const Sequence& waiting) {
    if (starts != NewRequests::kOfOthers) return starts == NewRequests::kAll;
    return !has_preempted(waiting.request.caller.group());
  };
  const auto may = [&](const auto& waiting) {
    if (waiting->keeps_pages() && waiting.get() != keeper) return false;
    return (waiting->is_preempted() || starts_new(*waiting)) && has_pages_left(*waiting);
  };
  in_turn_.clear();
  for (const auto& waiting : waiting_) {
    if (may(waiting)) in_turn_.push_back(waiter_of(*waiting));
  }
  const std::optional<TenantId> tenant = tenant_in_turn(in_turn_, use);
  if (!tenant) return waiting_.end();
  in_turn_.clear();
  in_turn_at_.clear();
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    if ((*at)->request.caller.share() != *tenant || !may(*at)) continue;
    in_turn_.push_back(waiter_of(**at));
    in_turn_at_.push_back(at);
  }
  return in_turn_at_[recurve::next_in_turn(in_turn_, turn_of_shortest_)];
}

// The cached state that a fresh prompt starts from, if there is one.
PrefixCache::Start WaitingLine::prefix_of(const Sequence& waiting) {
  const Request& request = waiting.request;
  const PrefixScope scope = waiting.prefix_scope();
  if (scope.begin == nullptr && !waiting.starts_fresh()) {
    return {.use = {.miss = PrefixMiss::kContinues}};
  }
  if (request.more_prompt || request.sampling.prompt_logprobs >= 0) {
    return {.use = {.miss = PrefixMiss::kScored}};
  }
  // The points count the ids of a fresh prompt.
  const bool has_points = waiting.starts_fresh();
  return prefixes_.start(scope, waiting.prompt.ids, request.prefix,
                         has_points ? request.prompt.prefix_points : PrefixPoints());
}

// All that may throw comes first: if it does, the request is unchanged and still waits.
void WaitingLine::start(Sequence& sequence, Clock::time_point now) {
  if (sequence.is_preempted()) return resume(sequence);
  Request& request = sequence.request;
  if (sequence.adapter() != nullptr) request.adapter = sequence.adapter()->weights;
  if (sequence.replay) return start_replay(sequence, now);
  Session* const session = sequence.session;
  const Snapshot* const begin = sequence.begin();
  const int64_t from = sequence.begin_position();
  if (begin != nullptr) sequence.history = begin->history;
  if (session != nullptr) sequence.log = session->at.log;
  if (session != nullptr && session->durable()) {
    sequence.durable_answer.emplace(
        StateAnswer{.request_id = request.id, .digest = digest_of(request)});
    sequence.durable_answer->wait_for_commit = request.durability != Durability::kNone;
    sequence.durable_answer->answer.begins_text = sequence.starts_text();
  }
  PrefixCache::Start prefix = prefix_of(sequence);
  const InitialState* const initial = sequence.prefix_scope().begin;
  if (prefix.image != nullptr && initial != nullptr && !has_pages_alone(sequence)) {
    prefix.use = {.miss = PrefixMiss::kNotStored};  // its pages would come in addition
    prefix.image.reset();
  }
  PromptPhase& prompt = sequence.prompt;
  sequence.history.add_prompt(std::span(prompt.ids).first(static_cast<size_t>(prefix.use.tokens)));
  if (session != nullptr) {
    sequence.slot = sessions_.check_out(*session, std::move(prefix.image), prefix.use.tokens);
  } else if (prefix.image != nullptr) {
    sequence.slot = slot_with(std::move(prefix.image), from + prefix.use.tokens);
  } else if (initial != nullptr) {
    sequence.slot = slot_with(*initial);
  } else {
    sequence.slot = std::move(*pool_.acquire());
  }

  request.prompt = {};
  request.continued_prompt.reset();
  prompt.prefix = prefix.use;
  prompt.points = std::move(prefix.points);
  prompt.absorbed = static_cast<size_t>(prefix.use.tokens);
  sequence.log_prompt(0);
  sequence.most_tokens = most_tokens_of(request.caller);
  sequence.position = from + prefix.use.tokens;
  sequence.started = now;
  reserve_pages(sequence);
  const bool unchanged = initial != nullptr && prefix.use.tokens == 0;
  if (unchanged && pool_.layout().grows() && residents_.find(initial) == nullptr) {
    residents_.keep(*initial, sequence.slot);
  }
  metrics_.add_prefix(index_of(prompt.prefix.miss), prompt.prefix.tokens, prompt.prefix.replayed,
                      prompt.prefix.lost);
  if (sequence.requeued) return;
  if (initial != nullptr) metrics_.add_initial_state(initial->id.name);
  if (sequence.adapter() != nullptr) metrics_.add_adapter(sequence.adapter()->id.name);
  metrics_.observe_queue(seconds_between(request.arrival, now));
}

void WaitingLine::resume(Sequence& sequence) {
  sequence.slot = slot_with(sequence.preemption.state, sequence.position);
  sequence.preemption.state.reset();
  sequence.sampler_unset = !sequence.in_prompt();
  reserve_pages(sequence);
}

void WaitingLine::start_replay(Sequence& sequence, Clock::time_point now) {
  const Snapshot& begin = sequence.replay->begin;
  sequence.history = begin.history;
  sequence.slot =
      begin.image ? slot_with(begin.image, begin.position) : std::move(*pool_.acquire());
  sequence.replay->base = std::exchange(sequence.replay->begin.image, nullptr);
  sequence.most_tokens = most_tokens_;
  sequence.started = now;
  reserve_pages(sequence);
}

void WaitingLine::requeue(std::unique_ptr<Sequence>& preempted) {
  Line one(1);
  reserve_turns();
  one.front() = std::move(preempted);
  insert(one);
  queue_.count_requeued();
}

void WaitingLine::requeue(const Sequence& sequence, size_t first) {
  Line one;
  Sequence& waiting = *one.emplace_back(std::make_unique<Sequence>());
  waiting.request = sequence.request;
  Request& request = waiting.request;
  request.sampling.seed += first;
  request.sampling.prompt_logprobs = -1;  // only the first choice scores the prompt
  request.streams.erase(request.streams.begin(),
                        request.streams.begin() + static_cast<ptrdiff_t>(first));
  waiting.prompt.ids = sequence.prompt.ids;
  waiting.prompt.tokens = static_cast<int64_t>(waiting.prompt.ids.size());
  waiting.prompt.rank = sequence.prompt.rank;
  waiting.requeued = true;
  line_up(one);
  queue_.count_requeued();
}

std::optional<Clock::time_point> WaitingLine::next_deadline() const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](const std::optional<Clock::time_point>& when) {
    if (when && (!next || *when < *next)) next = when;
  };
  for (const Line* const line : {&reading_, &waiting_}) {
    for (const auto& waiting : *line) {
      consider(waiting->request.deadline);
      consider(patience_ends(*waiting));
      consider(waiting->patience_ends());
    }
  }
  return next;
}

std::optional<Clock::time_point> WaitingLine::patience_ends(const Sequence& waiting) const {
  if (waiting.first_token_within == 0 || waiting.is_preempted()) return std::nullopt;
  return waiting.request.arrival + to_duration(2 * waiting.first_token_within);
}

}  // namespace recurve
