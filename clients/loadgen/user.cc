#include "clients/loadgen/user.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "clients/cpp/client_error.h"
#include "clients/cpp/retry_pushback.h"

namespace recurve::loadgen {
namespace {

constexpr double kSessionTtlSeconds = 600;  // sessions of a load generator that was killed
// Together less than what a run waits for its users at the end.
constexpr double kOpenSeconds = 5;
constexpr double kCloseSeconds = 4;
constexpr std::chrono::milliseconds kBusyPause(20);
constexpr std::chrono::milliseconds kLongestPause(1000);  // before a turn is repeated
// Until the run ends: it measures what a client sees that does not give up.
constexpr RepeatPolicy kRepeats{.attempts = std::numeric_limits<int>::max(),
                                .backoff = kBusyPause,
                                .max_backoff = kBusyPause,
                                .max_wait = std::chrono::hours(24),
                                .busy = std::chrono::hours(24)};

}  // namespace

void User::begin(Conversation conversation, double due) {
  conversation_ = std::move(conversation);
  turn_ = 0;
  end_ = {};
  begin_turn(due);
}

void User::begin_turn(double due) {
  record_ = {.due = due, .sent = context_.watch.now()};
  measured_ = worker_.recorder().window().holds(due);
  ++context_.running;
  if (measured_) ++context_.measured_running;
  answers_.assign(static_cast<size_t>(context_.workload.options().forks), {});
  complete_ = false;
  if (durable()) repeats_ = Repeats(kRepeats);
  if (turn_ == 0 && (durable() || conversation_.turns.size() > 1)) {
    open_session();
  } else {
    send();
  }
}

void User::open_session() {
  v1::OpenSessionRequest request;
  session_ = fmt::format("loadgen-{:016x}-{}", context_.run_id, conversation_.index);
  request.set_name(session_);
  request.set_model(context_.options.model);
  request.set_durability(context_.options.durability);
  if (context_.options.durability != v1::DURABILITY_REMOTE) {
    request.set_ttl_seconds(kSessionTtlSeconds);
  }
  const double timeout =
      std::min(context_.options.timeout_seconds.value_or(kOpenSeconds), kOpenSeconds);
  grpc::ClientContext* const call = new_call(timeout, false);
  opening_ = worker_.sessions().AsyncOpen(call, request, worker_.queue());
  opening_->Finish(&opened_, &status_, then(&User::session_opened));
}

void User::session_opened(bool) {
  const bool opened = repeats_.lost() && status_.error_code() == grpc::StatusCode::ALREADY_EXISTS;
  if (status_.ok() || opened) return send();
  // The server may have opened it all the same where its answer was late.
  const bool late = status_.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, status_.error_message());
  if (repeat(&User::open_again, late ? lost : status_)) return;
  if (!late) session_.clear();
  request_ended(true);
}

v1::GenerateRequest User::request() const {
  const Turn& turn = conversation_.turns[turn_];
  const Workload& workload = context_.workload;
  v1::GenerateRequest request;
  if (workload.asks_in_text()) {
    request.set_text(workload.prompt_text(conversation_.index, turn_));
  } else {
    const std::vector<int32_t> ids = workload.prompt_ids(conversation_, turn_);
    request.mutable_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  }
  request.mutable_stop()->set_max_tokens(static_cast<int32_t>(turn.output_tokens));
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(static_cast<float>(context_.options.temperature));
  request.mutable_sampling()->set_seed(workload.sampling_seed(conversation_.index, turn_));
  if (answers_.size() > 1) request.set_n(static_cast<int32_t>(answers_.size()));
  request.set_session(session_);
  request.set_model(context_.options.model);
  if (durable()) {
    request.set_request_id(fmt::format("{}.{}", session_, turn_));
  }
  return request;
}

void User::send() {
  const v1::GenerateRequest message = request();
  grpc::ClientContext* const call = new_call(context_.options.timeout_seconds, true);
  reader_ = worker_.inference().PrepareAsyncGenerate(call, message, worker_.queue());
  if (session_.empty() || turn_ > 0) record_.sent = context_.watch.now();
  reader_->StartCall(then(&User::started));
}

void User::started(bool ok) {
  if (ok) {
    reader_->Read(&response_, then(&User::got_message));
  } else {
    reader_->Finish(&status_, then(&User::request_ended));
  }
}

void User::got_message(bool ok) {
  if (!ok) return reader_->Finish(&status_, then(&User::request_ended));
  const double now = context_.watch.now();
  if (response_.has_chunk()) got_chunk(response_.chunk(), now);
  if (response_.has_prompt()) record_.prompt_tokens = response_.prompt().prompt_tokens();
  if (response_.has_final()) {
    complete_ = true;
    record_.queue_seconds = response_.final().usage().queue_seconds();
    record_.prefill_seconds = response_.final().usage().prefill_seconds();
  }
  reader_->Read(&response_, then(&User::got_message));
}

void User::got_chunk(const v1::Chunk& chunk, double now) {
  const size_t choice = static_cast<size_t>(std::max(0, chunk.choice()));
  if (chunk.ids().empty() || choice >= answers_.size()) return;
  Answer& answer = answers_[choice];
  const auto count = static_cast<uint64_t>(chunk.ids_size());
  if (answer.tokens == 0) {
    worker_.recorder().first_tokens(now, count, record_.has_first ? 0 : record_.prompt_tokens);
    if (!record_.has_first) record_.first = now;
    record_.has_first = true;
    answer.first = now;
  } else {
    worker_.recorder().tokens(now, record_.due, now - answer.last, count);
  }
  answer.last = now;
  answer.tokens += chunk.ids_size();
  if (context_.options.on_answer) {
    answer.ids.insert(answer.ids.end(), chunk.ids().begin(), chunk.ids().end());
  }
}

void User::request_ended(bool) {
  if (status_.ok()) {
    return end_turn(complete_ ? "" : "NO_FINAL_MESSAGE",
                    "the stream ended without a final message");
  }
  if (repeat(&User::send_again, status_)) return;
  if (context_.stopping && status_.error_code() == grpc::StatusCode::CANCELLED) {
    return end_turn(kUnfinished, "the run ended before the answer");
  }
  const auto retry = retry_pushback(*grpc_context_);
  end_.retry_seconds = retry ? std::chrono::duration<double>(*retry).count() : 0;
  end_turn(status_code_name(status_.error_code()), status_.error_message());
}

// False if the attempt that has failed is not repeated.
bool User::repeat(void (User::*step)(bool), const grpc::Status& failure) {
  if (!durable() || context_.stopping) return false;
  const auto pause = repeats_.pause_after(failure, retry_pushback(*grpc_context_));
  if (!pause) return false;
  worker_.recorder().repeated(record_.due);
  record_.has_first = false;
  complete_ = false;
  answers_.assign(answers_.size(), {});
  pause_.emplace();
  pause_->Set(worker_.queue(), std::chrono::system_clock::now() + std::min(*pause, kLongestPause),
              then(step));
  return true;
}

void User::send_again(bool) { send(); }
void User::open_again(bool) { open_session(); }

void User::end_turn(std::string error, const std::string& sentence) {
  record_.end = context_.watch.now();
  record_.error = std::move(error);
  end_.failed = !record_.error.empty();
  fill_times();
  worker_.recorder().request(record_, sentence);
  if (context_.options.on_answer && record_.error.empty()) {
    Answered answered{.session = session_, .conversation = conversation_.index, .turn = turn_};
    for (Answer& answer : answers_) answered.ids.push_back(std::move(answer.ids));
    context_.options.on_answer(answered);
  }
  --context_.running;
  if (measured_) --context_.measured_running;
  next_turn();
}

void User::fill_times() {
  if (!record_.has_first) record_.first = record_.end;
  for (const Answer& answer : answers_) {
    if (answer.tokens < 2) continue;
    record_.has_tpot = true;
    record_.tpot = std::max(record_.tpot,
                            (answer.last - answer.first) / static_cast<double>(answer.tokens - 1));
  }
}

void User::next_turn() {
  ++turn_;
  if (end_.failed || context_.stopping || turn_ == conversation_.turns.size()) {
    return close_session();
  }
  const double pause = conversation_.turns[turn_].think_seconds;
  const double due = record_.end + pause;
  if (pause <= 0) return begin_turn(due);
  context_.pacer.at(due, [this, due] {
    if (!context_.stopping) return begin_turn(due);
    const double now = context_.watch.now();
    if (due <= now) worker_.recorder().overdue(due, now);
    close_session();
  });
}

void User::close_session() {
  if (context_.options.leave_open) session_.clear();
  if (session_.empty()) return context_.on_end(this, worker_, end_);
  give_up_closing_ = context_.watch.now() + kCloseSeconds;
  send_close(true);
}

void User::send_close(bool) {
  v1::CloseSessionRequest request;
  request.set_name(session_);
  grpc::ClientContext* const call =
      new_call(std::max(give_up_closing_ - context_.watch.now(), 0.0), false);
  closing_ = worker_.sessions().AsyncClose(call, request, worker_.queue());
  closing_->Finish(&closed_, &status_, then(&User::session_closed));
}

void User::session_closed(bool) {
  // The server ends a request that was cancelled with its next step; until then the session is
  // busy.
  if (status_.error_code() == grpc::StatusCode::FAILED_PRECONDITION &&
      context_.watch.now() < give_up_closing_) {
    pause_.emplace();
    return pause_->Set(worker_.queue(), std::chrono::system_clock::now() + kBusyPause,
                       then(&User::send_close));
  }
  session_.clear();
  context_.on_end(this, worker_, end_);
}

grpc::ClientContext* User::new_call(std::optional<double> timeout_seconds, bool cancellable) {
  // They live in the memory of the call before.
  reader_.reset();
  opening_.reset();
  closing_.reset();
  CallOptions options{.canceller = cancellable ? &canceller_ : nullptr};
  if (timeout_seconds) options.timeout = std::chrono::duration<double>(*timeout_seconds);
  call_.emplace(options);
  grpc_context_ = call_->context();
  if (!session_.empty()) grpc_context_->AddMetadata("x-recurve-session", session_);
  return grpc_context_;
}

void* User::then(void (User::*step)(bool)) {
  then_ = step;
  return static_cast<Event*>(this);
}

}  // namespace recurve::loadgen
