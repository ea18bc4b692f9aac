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

// The door of one request for an answer, whatever it came by: reads it, opens the session of a
// sequence that starts, has the answer made, closes the session of one that ends. Holds itself from
// start() until all of that is over.
//
//   start() -> text thread: the message is read -> was_read() -> go() -> [open] -> Generation
//   -> events -> [close] -> flush() -> done() -> released()
class InferCall : public AnswerSink,
                  public std::enable_shared_from_this<InferCall>,
                  private Executor::Task {
 public:
  virtual ~InferCall() = default;

  // The message is to be read. Once, first.
  void start();
  // Opens the session, or begins. Once, after was_read().
  void go();
  // The client has gone. Once or more, from any thread.
  void left();
  // What the request says, once it has been read.
  const InferRequest& request() const { return request_; }

  std::optional<Clock::time_point> deadline() const final { return deadline_; }
  std::string peer() const final;
  CallOrigin origin() const final { return ServiceContext::origin(&grpc_call_, rpc_); }
  void send(AnswerEvent event) final;
  void finish(const Refused& refusal) final;
  bool finished() const final { return finished_; }
  void cut() final { grpc_call_.TryCancel(); }
  void released() final { self_.reset(); }

 protected:
  // context and call outlive it; rpc: as for StreamCall.
  InferCall(ServiceContext& context, grpc::CallbackServerContext& call, const char* rpc,
            grpc::ByteBuffer message);

  // What the final class does.
  virtual void was_read() = 0;  // on the text thread, or within start()
  // On the strand: a response is there; and everything has been said.
  virtual void respond(inference::ModelInferResponse response) = 0;
  virtual void conclude(const Refused& refusal) = 0;

  // It will be refused, unless it is already. In was_read().
  void refuse(Refusal refusal);
  // Whether what finish() has said can be said now: the session of a sequence that ends is closed
  // first. On the strand.
  bool may_conclude();
  bool gone() const { return gone_; }
  // Has the strand look again, as something has changed. Any thread, which holds the call; nothing
  // after done().
  void poke();
  // Nothing more is to be written. Once.
  void done();

  ServiceContext& context_;
  const std::shared_ptr<ServedModel> model_ = context_.core.model();
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
  // Why there will be no answer, as was found before it could begin.
  Refused early_;
  std::optional<InferAnswer> answer_;  // once it was accepted
  bool opened_ = false;                // the session, by this request
  enum class Closing { kNot, kUnderWay, kDone };
  std::atomic<Closing> closing_{Closing::kNot};

  // The strand may reach done() as soon as another thread has changed what it waits for: whoever
  // has something to say to the call holds the lock.
  std::mutex mutex_;
  ServedCall* served_ = nullptr;  // from begin() to done(); deletes itself then
  std::atomic<bool> gone_{false};
};

}  // namespace recurve
