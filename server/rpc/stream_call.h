#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "server/rpc/outbox.h"
#include "server/rpc/service_context.h"
#include "server/serving/served_call.h"

namespace recurve {

// gRPC has deadlines on the wall clock, the engine on the steady one. Without a deadline, gRPC's is
// in the far future.
inline std::optional<Clock::time_point> deadline_of(const grpc::CallbackServerContext& call) {
  const auto remaining = call.deadline() - std::chrono::system_clock::now();
  if (remaining > std::chrono::hours(24 * 365)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(remaining);
}

// A streaming call. SinkType: AnswerSink or ScoreSink. Deletes itself.
template <typename Reactor, typename SinkType>
class StreamCall : public Reactor, public SinkType {
 public:
  // gRPC's events, from any thread.
  void OnWriteDone(bool ok) final {
    const bool awaited = outbox_.written();
    if (!ok) {
      OnCancel();
    } else if (awaited) {
      served_->poke();
    }
  }
  void OnCancel() final {
    cancelled_ = true;
    served_->disconnected();
  }
  void OnDone() final { served_->done(); }

  std::optional<Clock::time_point> deadline() const final { return deadline_of(*call_); }
  std::string peer() const final { return context_.peer_address(call_); }
  CallOrigin origin() const final { return ServiceContext::origin(call_, rpc_); }
  bool busy() final { return outbox_.writing(); }
  size_t unsent() const final { return outbox_.waiting(); }
  void discard() final { outbox_.discard(); }
  void cut() final {
    if (!cancelled_) call_->TryCancel();
  }
  void finish(const Refused& refusal) final { outbox_.finish(context_.status_for(call_, refusal)); }
  bool finished() const final { return outbox_.finished(); }
  void flush() final {
    if (cancelled_) outbox_.discard();
    switch (outbox_.next()) {
      case Outbox::Next::kNothing:
        return;
      case Outbox::Next::kWrite:
        return this->StartWrite(outbox_.current());
      case Outbox::Next::kWriteLast:
        return this->StartWriteAndFinish(outbox_.current(), {}, outbox_.status());
      case Outbox::Next::kFinish:
        return this->Finish(outbox_.status());
    }
  }
  void released() final { delete this; }

 protected:
  // rpc: PACKAGE.SERVICE/METHOD, a literal.
  StreamCall(ServiceContext& context, grpc::CallbackServerContext* call, const char* rpc)
      : context_(context), call_(call), rpc_(rpc) {}
  ~StreamCall() override = default;

  // The last statement of the final class's constructor.
  void serve(ServedCall* served, int64_t message_bytes = 0, const std::string& id = "") {
    served_ = served;
    caller_ = context_.caller(call_);
    served->open(caller_, {.bytes = message_bytes}, id);
  }
  ServedCall& served() { return *served_; }
  const Identity& caller() const { return caller_; }

  ServiceContext& context_;
  Outbox outbox_;

 private:
  grpc::CallbackServerContext* const call_;  // valid until OnDone()
  const char* const rpc_;
  Identity caller_ = kAnyone;
  ServedCall* served_ = nullptr;  // deletes itself once it is done()
  std::atomic<bool> cancelled_{false};
};

}  // namespace recurve
