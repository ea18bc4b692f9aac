#pragma once
#include <grpcpp/support/server_callback.h>

#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "server/observe/log.h"
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
  void run() override { finish(answer()); }
  grpc::Status answer() {
    try {
      return answer_();
    } catch (const std::bad_alloc&) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              "the system gives no memory for the call: try again later"};
    } catch (const std::exception& error) {
      log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
      return {grpc::StatusCode::INTERNAL, "the server has failed on the call"};
    }
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  Answer answer_;
  ByteBudget::Share message_share_;
};

}  // namespace recurve
