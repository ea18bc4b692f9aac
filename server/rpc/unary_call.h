#pragma once
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>

#include "server/rpc/service_context.h"

namespace recurve {

// A unary call whose answer is made on an executor, after the handler has returned. Deletes itself.
class UnaryCall final : public grpc::ServerUnaryReactor, private Executor::Task {
 public:
  using Answer = std::function<grpc::Status()>;  // fills the response

  UnaryCall(ServiceContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call) {}

  // One of these, once.
  void finish(const grpc::Status& status) {
    message_share_ = {};
    Finish(context_.report(status, call_));
  }
  void answer_on(Executor& executor, Answer answer) {
    answer_ = std::move(answer);
    executor.post(this);
  }
  // RESOURCE_EXHAUSTED if `most` tasks wait there, or there is no memory for its message.
  void try_answer_on(Executor& executor, size_t most, int64_t message_bytes, Answer answer) {
    answer_ = std::move(answer);
    message_share_ = context_.message_bytes.take(message_bytes);
    if (message_share_ && executor.try_post(this, most)) return;
    finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait: try again later"});
  }

  void OnDone() override { delete this; }

 private:
  void run() override { finish(answer_()); }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  Answer answer_;
  ByteBudget::Share message_share_;
};

}  // namespace recurve
