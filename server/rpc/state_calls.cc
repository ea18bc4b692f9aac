#include "server/rpc/state_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"

namespace recurve {
namespace {

constexpr uint64_t kChunk = uint64_t{1} << 20;

Refusal refusal_of(const StateError& error) {
  return refuse(error.reason(), fmt::format("the state cannot be imported: {}", error.what()));
}

}  // namespace

ExportCall::ExportCall(ServiceContext& context, grpc::CallbackServerContext* call,
                       const grpc::ByteBuffer& request)
    : context_(context), call_(call) {
  v1::ExportRequest message;
  SessionCommand command;
  Identity caller;
  Refused refused = context.admit(call, &caller);
  if (!refused) refused = parse(request, &message);
  if (!refused) {
    offset_ = message.offset();
    command = {.kind = SessionCommand::Kind::kExport,
               .caller = caller,
               .name = message.name(),
               .expected_epoch = epoch_of(message)};
    refused = validate(&command);
  }
  if (!refused) {
    command.done = [this](SessionResult result) {
      result_ = std::move(result);
      context_.core.text_threads.post(this);
    };
    refused = model_->post(std::move(command));
  }
  if (refused) finish(std::move(refused));
}

void ExportCall::run() {
  try {
    begin();
  } catch (const std::bad_alloc&) {
    finish(refuse(EndReason::kNoMemory));
  }
}

void ExportCall::begin() {
  if (const Refused refused = refusal_of(result_)) return finish(refused);
  total_ = result_.state->bytes();
  if (offset_ > total_) {
    return finish(invalid("offset", "offset must be in [0, {}], got {}", total_, offset_));
  }
  write_next();
}

void ExportCall::write_next() {
  if (offset_ == total_ || cancelled_) return finish({});
  v1::StateChunk chunk;
  chunk.set_total_bytes(total_);
  std::string& data = *chunk.mutable_data();
  data.resize(std::min(kChunk, total_ - offset_));
  result_.state->read(offset_, data);
  offset_ += data.size();
  message_ = serialize(chunk);
  StartWrite(&message_);
}

void ExportCall::OnWriteDone(bool ok) {
  if (!ok) return finish(refuse(EndReason::kClientGone));
  try {
    write_next();
  } catch (const std::bad_alloc&) {
    finish(refuse(EndReason::kNoMemory));
  }
}

void ExportCall::finish(Refused refusal) {
  result_.state.reset();
  Finish(context_.status_for(call_, context_.core.report(std::move(refusal))));
}

ImportCall::ImportCall(ServiceContext& context, grpc::CallbackServerContext* call,
                       grpc::ByteBuffer* response)
    : context_(context), call_(call), response_(response) {
  Refused refused = context.admit(call, &caller_);
  if (refused) {
    finish(std::move(refused));
  } else {
    StartRead(&incoming_);
  }
}

void ImportCall::OnReadDone(bool ok) {
  try {
    if (!ok) {
      if (context_.core.text_threads.try_post(
              this, state_.size(), static_cast<size_t>(context_.core.options.max_tokenising),
              caller_.share()))
        return;
      return finish(refuse(EndReason::kManyWaiting));
    }
    v1::ImportRequest message;
    Refused refused = parse(incoming_, &message);
    if (!refused) refused = take(message);
    if (refused) return finish(std::move(refused));
    if (too_long_) return OnReadDone(false);
    StartRead(&incoming_);
  } catch (const std::bad_alloc&) {
    finish(refuse(EndReason::kNoMemory));
  }
}

// The first message names the session; memory for the largest state is reserved then.
Refused ImportCall::take(const v1::ImportRequest& message) {
  const auto most = static_cast<size_t>(model_->info.most_written_bytes);
  if (!std::exchange(started_, true)) {
    command_ = {.kind = SessionCommand::Kind::kImport,
                .caller = caller_,
                .name = message.name(),
                .ttl_seconds = ttl_of(message),
                .durability = durability_of(message)};
    if (Refused refused = validate(&command_)) return refused;
    share_ = context_.core.message_bytes.take(static_cast<int64_t>(most), caller_.share());
    if (!share_) {
      return refuse(EndReason::kExhausted,
                    fmt::format("a state may take {} bytes, which --request-memory does "
                                "not have now: retry later",
                                most));
    }
  }
  too_long_ = message.data().size() > most - state_.size();
  state_.append(message.data(), 0, most - state_.size());
  return {};
}

void ImportCall::run() {
  if (answered_) {
    Refused refused = recurve::refusal_of(result_);
    if (!refused) *response_ = one_session(result_);
    return finish(std::move(refused));
  }
  Refused refused;
  try {
    refused = check();
  } catch (const std::bad_alloc&) {
    refused = refuse(EndReason::kNoMemory);
  }
  if (refused) return finish(std::move(refused));
  hand_over();
}

Refused ImportCall::check() {
  if (!started_) return invalid("data", "the stream has no message: send the name and the state");
  const ServingInfo& info = model_->info;
  try {
    if (too_long_) {
      info.check_front(state_);
      return invalid("data", "a state of this model has at most {} bytes, got more",
                     info.most_written_bytes);
    }
    command_.state = info.read_state(state_);
  } catch (const StateError& error) {
    return refusal_of(error);
  }
  std::string().swap(state_);
  return {};
}

void ImportCall::hand_over() {
  command_.done = [this](SessionResult result) {
    result_ = std::move(result);
    answered_ = true;
    context_.core.delivery_threads.post(this);
  };
  if (Refused refused = model_->post(std::move(command_))) {
    finish(std::move(refused));
  }
}

void ImportCall::finish(Refused refusal) {
  command_.state.reset();
  share_ = {};
  Finish(context_.status_for(call_, context_.core.report(std::move(refusal))));
}

}  // namespace recurve
