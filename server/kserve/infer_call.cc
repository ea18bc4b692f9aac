#include "server/kserve/infer_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "server/observe/log.h"
#include "server/rpc/messages.h"
#include "server/rpc/stream_call.h"
#include "server/serving/gathered_answer.h"

namespace recurve {

InferCall::InferCall(ServiceContext& context, grpc::CallbackServerContext& call, const char* rpc,
                     grpc::ByteBuffer message)
    : context_(context),
      grpc_call_(call),
      rpc_(rpc),
      message_(std::move(message)),
      message_bytes_(static_cast<int64_t>(message_.Length())),
      deadline_(deadline_of(call)) {}

std::string InferCall::peer() const { return context_.peer_address(&grpc_call_); }

// A refused request takes the same path as all others, which counts and logs it.
void InferCall::start() {
  self_ = shared_from_this();
  ServerCore& core = context_.core;
  const Identity caller = context_.caller(&grpc_call_);
  request_.asked.caller = caller;
  early_ = check_role(caller, Role::kUser);
  if (!early_) early_ = core.availability();
  if (!early_) {
    message_share_ = core.message_bytes.take(message_bytes_, request_.asked.caller.share());
    const auto most = static_cast<size_t>(core.options.max_tokenising);
    const auto bytes = static_cast<size_t>(message_bytes_);
    if (message_share_ &&
        core.text_threads.try_post(this, bytes, most, request_.asked.caller.share()))
      return;
    early_ = recurve::refuse(EndReason::kManyWaiting);
  }
  message_.Clear();
  was_read();
}

void InferCall::run() {
  const auto self = shared_from_this();
  try {
    early_ = read_message();
  } catch (const std::bad_alloc&) {
    early_ = recurve::refuse(EndReason::kNoMemory);
  }
  message_.Clear();
  was_read();
}

Refused InferCall::read_message() {
  inference::ModelInferRequest message;
  if (Refused refused = parse(message_, &message)) return refused;
  Refused refused = read_infer_request(std::move(message), context_.core, &request_);
  model_ = request_.asked.model;
  if (!refused && request_.timeout) {
    const Clock::time_point end = Clock::now() + *request_.timeout;
    deadline_ = std::min(deadline_.value_or(end), end);
  }
  return refused;
}

void InferCall::refuse(Refusal refusal) {
  if (!early_) early_ = std::move(refusal);
}

void InferCall::go() {
  if (!early_ && request_.sequence.start && !cancelled_) return open_session();
  begin();
}

// Calls `then` on the delivery executor, unless it returns a refusal. Keeps the call alive until
// `then` returns, which may be after the call has ended.
Refused InferCall::command(SessionCommand command, std::function<void(Refused)> then) {
  if (Refused refused = validate(&command)) return refused;
  command.caller = request_.asked.caller;
  command.done = [self = shared_from_this(), then = std::move(then)](SessionResult result) {
    self->context_.core.delivery_threads.post(
        [self, then, refused = refusal_of(result)] { then(refused); });
  };
  command.model = model_->name();
  return context_.core.post(std::move(command));
}

void InferCall::open_session() {
  const Refused refused = command({.kind = SessionCommand::Kind::kOpen,
                                   .name = request_.sequence.session,
                                   .chosen = request_.asked.chosen},
                                  [this](Refused failed) {
                                    opened_ = !failed;
                                    early_ = std::move(failed);
                                    begin();
                                  });
  if (!refused) return;
  early_ = refused;
  begin();
}

// From here on the request ends as every other does.
void InferCall::begin() {
  const auto self = shared_from_this();
  message_share_ = {};
  if (!early_ && !request_.form.stream) {
    GatheredForm form = kGatheredTensors;
    form.repeated = static_cast<int64_t>(request_.form.prefix.size() * request_.form.choices);
    early_ = reserve_gathered(context_.core, model_->text, request_.asked.caller,
                              {&request_.asked, 1}, form, &gathered_share_);
  }
  std::lock_guard lock(mutex_);
  served_ = new Generation(context_.core, *this);
  served_->open(request_.asked.caller, {.bytes = early_ ? 0 : message_bytes_});
  if (cancelled_) served_->disconnected();
}

void InferCall::cancel() {
  std::lock_guard lock(mutex_);
  if (!cancelled_.exchange(true) && served_ != nullptr) served_->disconnected();
}

void InferCall::poke() {
  std::lock_guard lock(mutex_);
  if (served_ != nullptr) served_->poke();
}

Refused InferCall::read(TextRequest* asked) {
  if (early_) return early_;
  *asked = std::move(request_.asked);
  return {};
}

void InferCall::send(AnswerEvent event) {
  if (!answer_) {
    answer_.emplace(request_.form, model_.name(), *model_->text.tokenizer);
  }
  if (auto response = answer_->take(event)) respond(std::move(*response));
}

void InferCall::finish(const Refused& refusal) {
  refusal_ = refusal;
  finishing_ = true;
  if (!refusal && !request_.form.stream) respond(answer_->whole());
  conclude(refusal);
}

// A sequence ends with its last request, if that was accepted. The session of a refused first
// request is closed too: otherwise a retry could not open it.
bool InferCall::may_conclude() {
  const bool accepted = answer_.has_value();
  const bool closes = accepted ? request_.sequence.end : opened_;
  if (closes && closing_ == Closing::kNot) {
    closing_ = Closing::kUnderWay;
    close_session();
  }
  return !closes || closing_ == Closing::kDone;
}

void InferCall::close_session() {
  const std::string& session = request_.sequence.session;
  const auto log_failure = [&session](const Refused& failed) {
    if (!failed || failed->row().code == Code::kNotFound) return;
    log_event(LogLevel::kWarning, "sequence_not_closed",
              {{"session", session}, {"what", failed->message}});
  };
  const Refused refused = command({.kind = SessionCommand::Kind::kClose, .name = session},
                                  [this, log_failure](Refused failed) {
                                    log_failure(failed);
                                    closing_ = Closing::kDone;
                                    poke();
                                  });
  if (!refused) return;
  log_failure(refused);
  closing_ = Closing::kDone;
}

void InferCall::done() {
  ServedCall* served = nullptr;
  {
    std::lock_guard lock(mutex_);
    served = std::exchange(served_, nullptr);
    cancelled_ = true;
  }
  served->done();
}

}  // namespace recurve
