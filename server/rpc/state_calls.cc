#include <fmt/format.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "recurve/v1/sessions.pb.h"
#include "server/request/executor.h"
#include "server/request/session_command.h"
#include "server/rpc/calls.h"
#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"
#include "server/rpc/service_context.h"

namespace recurve {
namespace {

constexpr uint64_t kChunk = uint64_t{1} << 20;

// One Export call: sends a state in chunks, as fast as the client reads. Deletes itself.
class ExportCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private Executor::Task {
 public:
  ExportCall(ServiceContext& context, grpc::CallbackServerContext* call,
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
      refused = context.core.post(std::move(command));
    }
    if (refused) finish(std::move(refused));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return finish(refuse(EndReason::kClientGone));
    try {
      write_next();
    } catch (const StateGone& error) {
      finish(refuse(EndReason::kUnloading, error.what()));
    } catch (const std::bad_alloc&) {
      finish(refuse(EndReason::kNoMemory));
    }
  }

  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  // The engine has answered.
  void run() override {
    try {
      begin();
    } catch (const StateGone& error) {
      finish(refuse(EndReason::kUnloading, error.what()));
    } catch (const std::bad_alloc&) {
      finish(refuse(EndReason::kNoMemory));
    }
  }

  void begin() {
    if (const Refused refused = refusal_of(result_)) return finish(refused);
    total_ = result_.state->bytes();
    if (offset_ > total_) {
      return finish(invalid("offset", "offset must be in [0, {}], got {}", total_, offset_));
    }
    write_next();
  }

  void write_next() {
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

  void finish(Refused refusal) {
    result_.state.reset();
    Finish(context_.status_for(call_, context_.core.report(std::move(refusal))));
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  SessionResult result_;
  uint64_t offset_ = 0, total_ = 0;
  grpc::ByteBuffer message_;
  std::atomic<bool> cancelled_{false};
};

// One Import call: receives a state, checks it on a text thread and passes it to the engine.
// Deletes itself.
class ImportCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>, private Executor::Task {
 public:
  ImportCall(ServiceContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : context_(context), call_(call), response_(response) {
    Refused refused = context.admit(call, &caller_);
    if (refused) {
      finish(std::move(refused));
    } else {
      StartRead(&incoming_);
    }
  }

  void OnReadDone(bool ok) override {
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

  void OnCancel() override {}  // reads fail then
  void OnDone() override { delete this; }

 private:
  // The first message names the session; memory for the largest state is reserved then.
  Refused take(const v1::ImportRequest& message) {
    if (!started_) {
      FoundModel model;
      if (Refused refused = context_.core.find({message.model(), caller_}, &model)) return refused;
      started_ = true;
      most_ = static_cast<size_t>(model->info.most_written_bytes);
      command_ = {.kind = SessionCommand::Kind::kImport,
                  .caller = caller_,
                  .model = message.model(),
                  .name = message.name(),
                  .ttl_seconds = ttl_of(message),
                  .durability = durability_of(message),
                  .rewind_tokens = message.rewind_tokens()};
      if (Refused refused = validate(&command_)) return refused;
      share_ = context_.core.message_bytes.take(static_cast<int64_t>(most_), caller_.share());
      if (!share_) {
        return refuse(EndReason::kExhausted,
                      fmt::format("a state may take {} bytes, which --request-memory does "
                                  "not have now: retry later",
                                  most_));
      }
    }
    too_long_ = message.data().size() > most_ - state_.size();
    state_.append(message.data(), 0, most_ - state_.size());
    return {};
  }

  // The state is complete, or the engine has answered.
  void run() override {
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

  Refused check() {
    if (!started_) return invalid("data", "the stream has no message: send the name and the state");
    FoundModel model;  // found again: a slow client must not hold it
    Refused refused = context_.core.find({command_.model, caller_}, &model);
    if (!refused) refused = read_state(model->info, state_, too_long_, &command_);
    std::string().swap(state_);
    return refused;
  }

  void hand_over() {
    command_.done = [this](SessionResult result) {
      result_ = std::move(result);
      answered_ = true;
      context_.core.delivery_threads.post(this);
    };
    if (Refused refused = context_.core.post(std::move(command_))) {
      finish(std::move(refused));
    }
  }

  void finish(Refused refusal) {
    command_.state.reset();
    share_ = {};
    Finish(context_.status_for(call_, context_.core.report(std::move(refusal))));
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer incoming_;
  Identity caller_;
  bool started_ = false;
  size_t most_ = 0;  // bytes of a state of the model, once started
  SessionCommand command_;
  std::string state_;
  bool too_long_ = false;    // more than any state of this model
  ByteBudget::Share share_;  // for the largest state
  bool answered_ = false;
  SessionResult result_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* export_state(ServiceContext& context,
                                                         grpc::CallbackServerContext* call,
                                                         const grpc::ByteBuffer& request) {
  return new ExportCall(context, call, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* import_state(ServiceContext& context,
                                                        grpc::CallbackServerContext* call,
                                                        grpc::ByteBuffer* response) {
  return new ImportCall(context, call, response);
}

}  // namespace recurve
