#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/kserve/infer_answer.h"
#include "server/kserve/infer_request.h"
#include "server/rpc/service_context.h"
#include "server/serving/generation.h"

namespace recurve {

// One inference request, unary or in a stream: reads it, opens the session of a sequence that
// starts, generates the answer, and closes the session of a sequence that ends. Owns itself from
// start() to released().
//
//   start() -> text thread: the message is read -> was_read() -> go() -> [open] -> Generation
//   -> events -> [close] -> flush() -> done() -> released()
class InferCall : public AnswerSink,
                  public std::enable_shared_from_this<InferCall>,
                  private Executor::Task {
 public:
  virtual ~InferCall() = default;

  // Reads the message. Call once, first.
  void start();
  // Opens the session or generates. Call once, after was_read().
  void go();
  // The client has cancelled or disconnected. Any thread; may be called repeatedly.
  void cancel();
  // After was_read().
  const InferRequest& request() const { return request_; }

  std::optional<Clock::time_point> deadline() const final { return deadline_; }
  std::string peer() const final;
  CallOrigin origin() const final { return ServiceContext::origin(&grpc_call_, rpc_); }
  void send(AnswerEvent event) final;
  void finish(const Refused& refusal) final;
  bool finished() const final { return finished_; }
  void cut() final { grpc_call_.TryCancel(); }
  void released() final {
    gathered_share_ = {};  // here: another thread may have the last reference
    self_.reset();
  }

 protected:
  // context and call outlive it; rpc: as for StreamCall.
  InferCall(ServiceContext& context, grpc::CallbackServerContext& call, const char* rpc,
            grpc::ByteBuffer message);

  // For the final class.
  virtual void was_read() = 0;  // on the text thread, or within start()
  // On the strand: a response, and the end of the answer.
  virtual void respond(inference::ModelInferResponse response) = 0;
  virtual void conclude(const Refused& refusal) = 0;

  // Refuses the request, unless it is already refused. In was_read().
  void refuse(Refusal refusal);
  // Whether the end of the answer can be sent now: the session of a sequence that ends is closed
  // first. On the strand.
  bool may_conclude();
  bool cancelled() const { return cancelled_; }
  // Makes the strand check for changes. Any thread that owns a reference; no effect after done().
  void poke();
  // Nothing more will be written. Call once.
  void done();

  ServiceContext& context_;
  FoundModel model_;  // once the message is read
  grpc::CallbackServerContext& grpc_call_;
  const char* const rpc_;
  InferRequest request_;
  bool finishing_ = false, finished_ = false;
  Refused refusal_;

 private:
  void run() final;
  Refused read_message();
  Refused read(TextRequest* asked) final;
  void open_session();
  void begin();
  void close_session();
  Refused command(SessionCommand command, std::function<void(Refused)> then);

  std::shared_ptr<InferCall> self_;
  grpc::ByteBuffer message_;
  int64_t message_bytes_;
  ByteBudget::Share message_share_;  // until begin()
  ByteBudget::Share gathered_share_;
  std::optional<Clock::time_point> deadline_;
  // Why the request is refused before it starts.
  Refused early_;
  std::optional<InferAnswer> answer_;  // set once the request is accepted
  bool opened_ = false;                // this request has opened the session
  enum class Closing { kNot, kUnderWay, kDone };
  std::atomic<Closing> closing_{Closing::kNot};

  // Guards served_: the strand may reach done() as soon as another thread changes what it waits
  // for.
  std::mutex mutex_;
  ServedCall* served_ = nullptr;  // from begin() to done(), when it deletes itself
  std::atomic<bool> cancelled_{false};
};

}  // namespace recurve
