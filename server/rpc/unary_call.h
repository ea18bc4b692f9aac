#pragma once
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "server/observe/log.h"
#include "server/rpc/service_context.h"
#include "server/text/work_limits.h"

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
  // The same on the text executor; the answer may throw WorkUnwanted. RESOURCE_EXHAUSTED if too
  // many about as long wait there, or there is no memory for its message.
  void try_answer_on_text(int64_t message_bytes, Answer answer) {
    answer_ = std::move(answer);
    message_share_ = context_.message_bytes.take(message_bytes);
    const auto bytes = static_cast<size_t>(message_bytes);
    const auto most = static_cast<size_t>(context_.options.max_tokenising);
    if (message_share_ && context_.text.try_post(this, bytes, most)) return;
    finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait: try again later"});
  }
  WorkLimits limits() const { return context_.rules.limits(&unwanted_); }

  // By the client, or as the deadline has passed.
  void OnCancel() override {
    unwanted_ = true;
    context_.text.hasten(this);
  }
  void OnDone() override { delete this; }

 private:
  void run() override { finish(unwanted_ ? left() : wanted_answer()); }

  grpc::Status wanted_answer() {
    try {
      return answer_();
    } catch (const WorkUnwanted&) {
      return left();
    } catch (const TextRefused& error) {
      return {grpc::StatusCode::INVALID_ARGUMENT, error.what()};
    } catch (const std::bad_alloc&) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              "the system gives no memory for the call: try again later"};
    } catch (const std::exception& error) {
      log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
      return {grpc::StatusCode::INTERNAL, "the server has failed on the call"};
    }
  }
  static grpc::Status left() { return {grpc::StatusCode::CANCELLED, "the client went away"}; }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  Answer answer_;
  ByteBudget::Share message_share_;
  std::atomic<bool> unwanted_{false};
};

}  // namespace recurve
