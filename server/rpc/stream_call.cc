#include "server/rpc/stream_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "server/observe/log.h"
#include "server/rpc/messages.h"
#include "server/rpc/status.h"
#include "server/text/work_limits.h"

namespace recurve {
namespace {

using grpc::Status;
using grpc::StatusCode;

// gRPC keeps deadlines on the wall clock, the engine on the steady one. Without one, gRPC's is the
// end of time.
std::optional<Clock::time_point> deadline_of(const grpc::CallbackServerContext& call) {
  const auto left = call.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

bool is_refusal(Finish why) {
  return why == Finish::kNoSession || why == Finish::kSessionBusy || why == Finish::kInvalid ||
         why == Finish::kOverloaded || why == Finish::kNoMemory;
}

// Messages that wait to be written, before tokens are left where the engine sees them.
constexpr size_t kMostQueued = 2;

}  // namespace

StreamCall::StreamCall(ServiceContext& context, grpc::CallbackServerContext* call,
                       Executor& executor)
    : Strand(executor), context_(context), call_(call) {
  context_.registry.enter(this);
  context_.metrics.request_received();
}

StreamCall::~StreamCall() {
  message_share_ = {};
  // Only now: until here it uses what goes when no call is left.
  context_.registry.gone(!refusal_.ok());
}

void StreamCall::open(int64_t message_bytes, const std::string& id) {
  refusal_ = context_.availability();
  if (refusal_.ok()) refusal_ = hold(message_bytes);
  // A wrong one is refused when the message is read.
  if (refusal_.ok() && check_name("request_id", id).ok()) refusal_ = claim(id);
  if (!refusal_.ok()) return refuse();
  if (context_.queue.waiting() >= context_.queue.max_waiting()) {
    refusal_ = {StatusCode::RESOURCE_EXHAUSTED, "the queue is full: try again later"};
    return refuse();
  }
  const auto most = static_cast<size_t>(context_.options.max_tokenising);
  if (launch_on(context_.text, static_cast<size_t>(message_bytes), most)) return;
  refusal_ = {StatusCode::RESOURCE_EXHAUSTED, "too many prompts wait to be read: try again later"};
  refuse();
}

Status StreamCall::claim(const std::string& id) {
  if (id.empty() || id == id_) return {};
  if (!context_.registry.name(id, this)) {
    return {StatusCode::ALREADY_EXISTS,
            fmt::format("request_id must be unique among the requests under way, got {}", id)};
  }
  id_ = id;
  return {};
}

Status StreamCall::hold(int64_t message_bytes) {
  message_share_ = {};
  message_share_ = context_.message_bytes.take(message_bytes);
  if (message_share_) return {};
  return {StatusCode::RESOURCE_EXHAUSTED,
          "the requests under way fill the memory that there is for them: try again later"};
}

void StreamCall::refuse() {
  context_.registry.refused();
  launch();
}

// Everything that happens to the call, in the order it can happen.
void StreamCall::work() {
  if (finished_) return;
  if (!begun_.exchange(true)) begin_or_refuse();
  if (unwanted_ && !std::exchange(withdrawn_, true)) withdraw();
  const bool wait = writing();
  // The write waits for a client that does not read; it would wait for ever.
  if (wait && stalled() && !gone_) call_->TryCancel();
  const bool eager = eager_ && outbox_.size() < kMostQueued;
  if (failure_) {
    await_endings();
  } else if (!outcome_ && (!wait || eager || withdrawn_)) {
    look_on(wait);
  }
  if (!wait) write_next();
}

void StreamCall::begin_or_refuse() {
  if (!refusal_.ok()) return end(refusal_);
  // gRPC says so too, but this may be sooner.
  if (call_->deadline() <= std::chrono::system_clock::now()) unwanted_ = true;
  if (unwanted_) return;
  const Clock::time_point began = Clock::now();
  try {
    const Status status = begin();
    if (!status.ok()) end(status);
  } catch (const WorkUnwanted&) {  // the call is withdrawn next
  } catch (const TextRefused& error) {
    end(Status(StatusCode::INVALID_ARGUMENT, error.what()));
  }
  const std::chrono::duration<double> waited = began - arrival_, worked = Clock::now() - began;
  context_.metrics.observe_text(waited.count(), worked.count());
}

void StreamCall::look_on(bool busy) {
  try {
    look(busy);
  } catch (const WorkUnwanted&) {  // withdrawn next: unwanted_ is set before a poke
  } catch (const TextRefused& error) {
    end_early(Status(StatusCode::INVALID_ARGUMENT, error.what()));
  }
}

// What was being written of an answer cannot be made whole again: the call ends without the rest.
void StreamCall::failed(const std::exception& error) {
  if (finished_) throw;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (!memory) log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
  end_early(memory ? Status(StatusCode::RESOURCE_EXHAUSTED,
                            "the system gives no memory for the request: try again later")
                   : Status(StatusCode::INTERNAL, "the server has failed on the request"));
}

void StreamCall::end_early(Status status) {
  failure_ = std::move(status);
  outbox_.clear();
  for (const auto& stream : streams_) stream->cancel();
  context_.queue.wake();
  poke();
}

void StreamCall::await_endings() {
  for (size_t s = 0; s < streams_.size(); ++s) take(s);
  if (!outcome_ && endings_ == streams_.size()) end(*failure_);
}

// If so, there will be a poke when it is through.
bool StreamCall::writing() {
  if (!writing_) return false;
  more_ = true;
  return writing_;
}

// Called by the engine, for every token: a poke that could only find a write in flight is saved.
void StreamCall::tokens_came() {
  if (!eager_ && writing() && !stalled()) return;
  poke();
}

bool StreamCall::stalled() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->stalled(); });
}

void StreamCall::written(bool ok) {
  if (!ok) gone_ = unwanted_ = true;
  writing_ = false;
  if (more_.exchange(false) || !ok) poke();
}

void StreamCall::left() {
  gone_ = true;
  not_wanted();
}

void StreamCall::not_wanted() {
  unwanted_ = true;
  if (!begun_) hasten_on(context_.text);
  poke();
}

// Leaves the registry while it is whole: nobody may abort what is being destroyed.
void StreamCall::done() {
  context_.registry.leave(this);
  retire();
}

void StreamCall::abort(Registry::Reason reason) {
  if (reason == Registry::Reason::kShutdown) shutdown_ = true;
  aborted_ = true;
  not_wanted();
}

Status StreamCall::submit(ParsedRequest& parsed) {
  Request& request = parsed.request;
  if (request.id.empty()) request.id = make_name("r-");
  const Status claimed = claim(request.id);
  if (!claimed.ok()) return claimed;
  request.arrival = arrival_;
  request.deadline = deadline_of(*call_);
  const std::chrono::duration<double> patience(context_.options.stall_seconds);
  request.read_patience = std::chrono::duration_cast<Clock::duration>(patience);
  eager_ = !parsed.stop_strings.empty();
  for (const auto& stream : request.streams) stream->on_ready([this] { tokens_came(); });
  streams_ = request.streams;
  AdmissionQueue::Admission admission;
  try {
    admission = context_.queue.push(std::move(request));
  } catch (...) {
    streams_.clear();  // they will have no endings
    throw;
  }
  if (admission == AdmissionQueue::Admission::kAccepted) return {};
  streams_.clear();
  if (admission == AdmissionQueue::Admission::kClosed) {
    return {StatusCode::UNAVAILABLE, "the server is draining: use another one"};
  }
  return {StatusCode::RESOURCE_EXHAUSTED,
          fmt::format("the queue is full with {} requests: try again later",
                      context_.queue.max_waiting())};
}

TokenStream::Gathered StreamCall::take(size_t stream) {
  TokenStream::Gathered gathered = streams_[stream]->take();
  if (gathered.was_full) context_.queue.wake();
  if (gathered.ending) ++endings_;
  return gathered;
}

// Nobody wants the answer any more: the engine is told, and its last word awaited.
void StreamCall::withdraw() {
  if (outcome_) return;
  if (!submitted()) return end(reason_to_leave());
  for (const auto& stream : streams_) stream->cancel();
  context_.queue.wake();
}

Status StreamCall::reason_to_leave() const {
  if (shutdown_) return {StatusCode::UNAVAILABLE, "the server is going down: use another one"};
  if (aborted_) return {StatusCode::CANCELLED, "the request was aborted"};
  if (call_->deadline() <= std::chrono::system_clock::now()) {
    return {StatusCode::DEADLINE_EXCEEDED, "the call's deadline has passed"};
  }
  return {StatusCode::CANCELLED, "the client went away"};
}

Status StreamCall::failure_of(const Ending& ending) const {
  return ending.why == Finish::kCancelled && withdrawn_ ? reason_to_leave() : status_of(ending);
}

void StreamCall::send(const google::protobuf::Message& message) {
  outbox_.push_back(serialise(message));
}

void StreamCall::write_next() {
  if (gone_) outbox_.clear();
  if (outbox_.empty()) {
    if (!outcome_) return;
    finished_ = true;
    return start_finish(*outcome_);
  }
  current_ = std::move(outbox_.front());
  outbox_.pop_front();
  if (outcome_ && outbox_.empty()) {
    finished_ = true;
    return start_write_last(&current_, *outcome_);
  }
  if (outcome_ || !outbox_.empty()) more_ = true;
  writing_ = true;
  start_write(&current_);
}

void StreamCall::end(const Status& status, const Ending* last) {
  std::optional<double> retry_seconds;
  if (last != nullptr && last->why == Finish::kOverloaded) retry_seconds = last->retry_seconds;
  outcome_ = context_.report(status, call_, retry_seconds);
  if (!id_.empty()) context_.registry.forget(id_);
  if (last != nullptr && !is_refusal(last->why)) {
    context_.metrics.request_finished(metric_of(last->why));
  }
  log(status, last);
}

void StreamCall::log(const Status& status, const Ending* last) const {
  const Ending none;
  const Ending& ending = last != nullptr ? *last : none;
  const double total = std::chrono::duration<double>(Clock::now() - arrival_).count();
  const std::optional<Peer> peer = context_.connections.find(call_->peer());
  log_event(LogLevel::kInfo, "request_finished",
            {{"request_id", id_},
             {"peer", peer ? peer->address : "local"},
             {"code", name_of(status.error_code())},
             {"reason", last != nullptr ? name_of(last->why) : std::string_view("refused")},
             {"prompt_tokens", ending.prompt_tokens},
             {"generated_tokens", ending.generated_tokens},
             {"queue_seconds", ending.queue_seconds},
             {"prefill_seconds", ending.prefill_seconds},
             {"decode_seconds", ending.decode_seconds},
             {"total_seconds", total}});
}

}  // namespace recurve
