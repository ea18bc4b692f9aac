#include "server/serving/served_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "server/observe/log.h"
#include "server/text/work_limits.h"

namespace recurve {
namespace {

// Unsent events, beyond which tokens stay in the stream, where the engine sees that it is full.
constexpr size_t kMaxQueued = 2;

}  // namespace

ServedCall::ServedCall(ServerCore& core, ResponseSink& sink, Executor& executor)
    : Strand(executor), core_(core), sink_(sink) {
  core_.registry.enter(this);
  core_.metrics.request_received();
}

ServedCall::~ServedCall() {
  message_share_ = {};
  release_share();
  const bool was_refused = refusal_.has_value();
  CallRegistry& registry = core_.registry;
  sink_.released();
  model_.reset();
  // Last: core and metrics may be destroyed when no call remains.
  registry.gone(was_refused);
}

void ServedCall::open(const Identity& caller, CallMessage message, const std::string& id) {
  caller_ = caller;
  waited_seconds_ = message.waited_seconds;
  is_named_ = message.is_named;
  if (is_named_) id_ = id;
  trace_ = CallTrace(core_.options.tracer, sink_.origin(), arrival_);
  set_share(caller.share());
  refusal_ = admit(message, id);
  if (!refusal_) {
    const auto bytes = static_cast<size_t>(message.bytes);
    if (message.waited && launch_here(bytes, *message.waited)) return;
    const auto most = static_cast<size_t>(core_.options.max_tokenising);
    if (launch_on(core_.text_threads, bytes, most)) return;
    refusal_ = refuse(EndReason::kManyWaiting);
  }
  core_.registry.refused();
  launch();
}

Refused ServedCall::admit(const CallMessage& message, const std::string& id) {
  Refused refused = check_role(caller_, Role::kUser);
  if (!refused) refused = core_.availability();
  if (!refused) {
    refused = core_.enter(caller_, arrival_);
    counted_ = !refused;
  }
  if (!refused && !message.reserved) refused = reserve(message.bytes);
  // An invalid id is refused when the message is read.
  if (!refused && !check_name("request_id", id)) refused = claim(id);
  if (!refused && core_.queues_are_full()) {
    refused = refuse(EndReason::kExhausted, "the queue is full: try again later");
  }
  return refused;
}

Refused ServedCall::choose(std::shared_ptr<ServedModel> model) {
  model_ = std::move(model);
  if (model_->unloading()) return core_.refuse_closed(*model_);
  Refused refused = core_.enter(caller_, *model_);
  shares_ = !refused;
  return refused;
}

// The limits of one request of the tenant.
Refused ServedCall::check_size(const ParsedRequest& parsed) const {
  const Request& request = parsed.request;
  const TenantLimits& limits = caller_.limits;
  const auto check = [&](const char* limit, const char* field, int64_t most,
                         int64_t got) -> Refused {
    if (got <= most) return {};
    audit("limit", auditee(caller_), "INVALID_ARGUMENT", limit);
    return invalid(field, "{} must be at most {} for tenant \"{}\", got {}", field, most,
                   caller_.tenant_name, got);
  };
  Refused refused = check("priority", "priority", limits.priority, request.priority);
  if (!refused) {
    refused = check("choices", "n", limits.choices, static_cast<int64_t>(request.streams.size()));
  }
  if (!refused) {
    refused = check("prompt_tokens", "prompt tokens", limits.prompt_tokens,
                    static_cast<int64_t>(request.prompt.ids.size()));
    if (refused) refused->field = parsed.names.prompt;
  }
  return refused;
}

// The call can be aborted by that id afterwards.
Refused ServedCall::claim(const std::string& id) {
  if (is_named_ || id.empty() || id == id_) return {};
  if (!core_.registry.name(caller_.tenant, id, this)) {
    return Refusal{.reason = EndReason::kExists,
                   .message = fmt::format(
                       "request_id must be unique among the requests under way, got {}", id),
                   .field = "request_id"};
  }
  id_ = id;
  return {};
}

Refused ServedCall::reserve(int64_t message_bytes) {
  message_share_ = {};
  message_share_ = core_.message_bytes.take(message_bytes, caller_.share());
  if (message_share_) return {};
  return refuse(EndReason::kRequestMemory);
}

// Handles all events of the call, in the order in which they can happen.
void ServedCall::work() {
  if (model_ != nullptr && model_->ended()) cut();
  if (sink_.finished()) return;
  if (!begun_.exchange(true)) begin_or_refuse();
  if (unwanted_ && !std::exchange(withdrawn_, true)) withdraw();
  const bool busy = sink_.busy();
  // The client does not read: the write would never finish.
  if (busy && stalled()) sink_.cut();
  const bool eager = eager_ && sink_.unsent() < kMaxQueued;
  if (failure_) {
    await_ends();
  } else if (!ended_ && (!busy || eager || withdrawn_)) {
    poll_or_fail(busy);
  }
  if (busy) return;
  if (ended_ && sink_.unsent() <= 1) release_share();
  sink_.flush();
}

// Called before the last event is sent: the client may then send its next request, although the
// call ends later.
void ServedCall::release_share() {
  if (std::exchange(shares_, false)) core_.leave(caller_, *model_);
  if (std::exchange(counted_, false)) core_.tenants.leave(caller_);
}

void ServedCall::begin_or_refuse() {
  if (refusal_) return end(refusal_);
  if (late()) unwanted_ = true;  // the sink reports it too, but perhaps later
  if (unwanted_) return;
  const Clock::time_point began = Clock::now();
  try {
    if (Refused refused = begin()) end(std::move(refused));
  } catch (const WorkUnwanted&) {  // the call is withdrawn next
  } catch (const TextRefused& error) {
    end(invalid("prompt", "{}", error.what()));
  }
  core_.metrics.observe_text(waited_seconds_ + seconds_between(arrival_, began),
                             seconds_between(began, Clock::now()));
}

void ServedCall::poll_or_fail(bool busy) {
  try {
    poll(busy);
  } catch (const WorkUnwanted&) {  // withdrawn next: unwanted_ is set before a poke
  } catch (const TextRefused& error) {
    end_early(invalid("text", "{}", error.what()));
  }
}

// The events that were being written cannot be completed: the call ends without them.
void ServedCall::failed(const std::exception& error) {
  if (sink_.finished()) throw;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (!memory) log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
  end_early(memory ? refuse(EndReason::kNoMemory)
                   : refuse(EndReason::kInternal,
                            "the server could not serve the request because of an internal error: "
                            "see its log"));
}

void ServedCall::end_early(Refusal refusal) {
  failure_ = std::move(refusal);
  sink_.discard();
  for (const auto& stream : streams_) stream->cancel();
  if (submitted()) model_->queue.wake();
  poke();
}

void ServedCall::await_ends() {
  for (size_t s = 0; s < streams_.size(); ++s) take(s);
  if (!ended_ && ends_ == streams_.size()) end(failure_);
}

// Called by the engine's thread for every token of the stream, while the strand may submit more
// streams: does not poke while the sink is busy.
void ServedCall::on_tokens(const TokenStream& stream, bool eager) {
  if (!eager && sink_.busy() && !stream.stalled()) return;
  poke();
}

bool ServedCall::stalled() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->stalled(); });
}

void ServedCall::disconnected() { withdraw_soon(); }

void ServedCall::withdraw_soon() {
  unwanted_ = true;
  if (!begun_) hasten_on(core_.text_threads);
  poke();
}

// Leaves the registry before it is destroyed, so that abort() is not called afterwards.
void ServedCall::done() {
  {
    std::lock_guard lock(cut_mutex_);
    cut_ = true;
  }
  core_.registry.leave(this);
  trace_.delivered();
  retire();
}

// Also while the last event is being written, when the sink may be done at any time.
void ServedCall::cut() {
  std::lock_guard lock(cut_mutex_);
  if (!std::exchange(cut_, true)) sink_.cut();
}

void ServedCall::abort(CallRegistry::Reason reason) {
  if (reason == CallRegistry::Reason::kModelEnds) return poke();
  if (reason == CallRegistry::Reason::kShutdown) shutdown_ = true;
  aborted_ = true;
  withdraw_soon();
}

Refused ServedCall::prepare(ParsedRequest& parsed) {
  Request& request = parsed.request;
  if (request.id.empty()) request.id = make_name("r-");
  if (Refused refused = claim(request.id)) return refused;
  request.caller = caller_;
  if (Refused refused = check_size(parsed)) return refused;
  request.arrival = submitted() ? Clock::now() : arrival_;
  request.deadline = sink_.deadline();
  const std::chrono::duration<double> patience(core_.options.stall_seconds);
  request.read_patience = std::chrono::duration_cast<Clock::duration>(patience);
  eager_ = !parsed.stop_strings.empty();
  for (const auto& stream : request.streams) {
    stream->on_ready([this, &of = *stream, eager = eager_] { on_tokens(of, eager); });
  }
  streams_.insert(streams_.end(), request.streams.begin(), request.streams.end());
  return {};
}

Refused ServedCall::submit(ParsedRequest& parsed) {
  const size_t before = streams_.size();
  if (Refused refused = prepare(parsed)) return refused;
  Request& request = parsed.request;
  AdmissionQueue::Admission admission;
  try {
    admission = model_->queue.push(std::move(request));
  } catch (...) {
    streams_.resize(before);  // they will not end
    throw;
  }
  if (admission == AdmissionQueue::Admission::kAccepted) return {};
  streams_.resize(before);
  if (admission == AdmissionQueue::Admission::kClosed) return core_.refuse_closed(*model_);
  return refuse(EndReason::kExhausted,
                fmt::format("the queue is full with {} requests: try again later",
                            model_->queue.max_waiting()));
}

TokenStream::Gathered ServedCall::take(size_t stream) {
  TokenStream::Gathered gathered = streams_[stream]->take();
  if (gathered.was_full) model_->queue.wake();
  if (gathered.ending) ++ends_;
  const auto generated = static_cast<int64_t>(gathered.tokens.size());
  const bool accepted = gathered.accepted && (stream == 0 || !one_prompt_);
  const int64_t absorbed = accepted ? gathered.accepted->prompt_tokens : 0;
  generated_tokens_ += generated;
  prompt_tokens_ += absorbed;
  core_.tenants.spend(caller_, generated + absorbed, Clock::now());
  return gathered;
}

// Cancels the streams; the engine ends them.
void ServedCall::withdraw() {
  if (ended_) return;
  if (!submitted()) return end(withdrawal_reason());
  for (const auto& stream : streams_) stream->cancel();
  model_->queue.wake();
}

bool ServedCall::late() const {
  const std::optional<Clock::time_point> deadline = sink_.deadline();
  return deadline && *deadline <= Clock::now();
}

Refusal ServedCall::withdrawal_reason() const {
  if (shutdown_) return refuse(EndReason::kDraining);
  if (aborted_) return refuse(EndReason::kCancelled, "the request was aborted");
  return refuse(late() ? EndReason::kDeadline : EndReason::kClientGone);
}

Refused ServedCall::failure_of(const StreamEnd& ending) const {
  if (ending.reason == EndReason::kCancelled && withdrawn_) return withdrawal_reason();
  if (ending.reason == EndReason::kDraining && model_->unloading()) {
    return core_.refuse_closed(*model_);
  }
  return refusal_of(ending);
}

void ServedCall::end(Refused refusal, const StreamEnd* last) {
  ended_ = true;
  refusal = core_.report(std::move(refusal), model_.get());
  sink_.finish(refusal);
  if (!id_.empty()) core_.registry.forget(caller_.tenant, id_, this);
  if (last != nullptr) model_->metrics->request_finished(last->reason);
  count(refusal);
  log_end(refusal, last);
}

void ServedCall::count(const Refused& refusal) const {
  using Of = Metrics::Of;
  core_.metrics.count_for(caller_.tenant_name, Of::kRequests);
  if (refusal) core_.metrics.count_for(caller_.tenant_name, Of::kRefused);
  core_.metrics.count_for(caller_.tenant_name, Of::kPromptTokens, prompt_tokens_);
  core_.metrics.count_for(caller_.tenant_name, Of::kGeneratedTokens, generated_tokens_);
}

void ServedCall::log_end(const Refused& refusal, const StreamEnd* last) {
  trace_.ended(refusal, last, id_, caller_.tenant_name);
  const StreamEnd none;
  const StreamEnd& ending = last != nullptr ? *last : none;
  const std::string peer = sink_.peer();
  log_event(LogLevel::kInfo, "request_finished",
            {{"request_id", id_},
             {"trace_id", trace_.id()},
             {"tenant", caller_.tenant_name},
             {"model", model_ != nullptr ? std::string_view(model_->name()) : std::string_view()},
             {"peer", peer.empty() ? std::string_view("local") : peer},
             {"code", code_name(refusal)},
             {"reason", last != nullptr ? row_of(last->reason).name : std::string_view("refused")},
             {"prompt_tokens", ending.prompt_tokens},
             {"generated_tokens", ending.generated_tokens},
             {"queue_seconds", ending.queue_seconds},
             {"prefill_seconds", ending.prefill_seconds},
             {"decode_seconds", ending.decode_seconds},
             {"total_seconds", seconds_between(arrival_, Clock::now())}});
}

}  // namespace recurve
