#pragma once
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <utility>

#include "server/rpc/service_context.h"
#include "server/text/work_limits.h"

namespace recurve {

// A unary call that is answered on an executor, after its handler has returned. Deletes itself.
class UnaryCall final : public grpc::ServerUnaryReactor, private Executor::Task {
 public:
  using Answer = std::function<Refused()>;  // fills the response

  UnaryCall(ServiceContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call) {}

  // Call one of these, once.
  void finish(Refused refusal) {
    message_share_ = {};
    Finish(context_.status_for(call_, context_.core.report(std::move(refusal))));
  }
  void answer_on(Executor& executor, Answer answer) {
    answer_ = std::move(answer);
    executor.post(this);
  }
  // The same on the text executor; the answer may throw WorkUnwanted. Refuses the call if too many
  // texts of similar length wait there, or there is no memory for its message.
  void try_answer_on_text(int64_t message_bytes, const Identity& caller, Answer answer) {
    answer_ = std::move(answer);
    message_share_ = context_.core.message_bytes.take(message_bytes, caller.share());
    const auto bytes = static_cast<size_t>(message_bytes);
    const auto most = static_cast<size_t>(context_.core.options.max_tokenising);
    if (message_share_ && context_.core.text_threads.try_post(this, bytes, most, caller.share()))
      return;
    finish(refuse(EndReason::kManyWaiting));
  }
  // Memory for the response, until it was sent.
  ByteBudget::Share* answer_share() { return &answer_share_; }
  WorkLimits limits() const { return context_.core.limits(&unwanted_); }

  // The client has cancelled, or the deadline has passed.
  void OnCancel() override {
    unwanted_ = true;
    context_.core.text_threads.hasten(this);
  }
  void OnDone() override { delete this; }

 private:
  void run() override {
    finish(unwanted_ ? refuse(EndReason::kClientGone) : guarded("text", answer_));
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  Answer answer_;
  ByteBudget::Share message_share_, answer_share_;
  std::atomic<bool> unwanted_{false};
};

}  // namespace recurve
