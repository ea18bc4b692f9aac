#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/rpc/service_context.h"

namespace recurve {

// A call that puts one request to the engine and streams what comes of it: what Generate and Score
// have in common.
//
// Events (tokens, a write that is through, a client that left) may come from any thread; each only
// pokes the strand, which does all the work. At most one write is in flight. What the engine gives
// meanwhile gathers in the token streams and goes out with the next message: a slow client costs
// the engine nothing.
//
// A request once submitted is followed to its ending, whatever happens to the client; so the engine
// never calls into a call that is gone.
class StreamCall : public Strand, public Registry::Call {
 public:
  void abort(Registry::Reason reason) override;

 protected:
  StreamCall(ServiceContext& context, grpc::CallbackServerContext* call, Executor& executor);
  ~StreamCall() override;

  // Begins on the text executor, or refuses; of the request that has come, its bytes and its id, if
  // it has one. Last thing in the constructor of the final class.
  void open(int64_t message_bytes = 0, const std::string& id = "");
  // From now on Abort finds it by that id. ALREADY_EXISTS where another call has it.
  grpc::Status claim(const std::string& id);
  // Bytes that a message holds from now on, instead of those before it; OK unless there are none.
  grpc::Status hold(int64_t message_bytes);

  // What the final class does; on the strand.
  // Not OK: the call ends with it. May throw WorkUnwanted; not called where nobody wants the answer
  // by then.
  virtual grpc::Status begin() = 0;
  // Something may have come; called until end(), may throw WorkUnwanted. `busy`: a message is being
  // written, and there will be another look when it is through.
  virtual void look(bool busy) = 0;

  // What it can use for that; on the strand.
  grpc::Status submit(ParsedRequest& parsed);
  bool submitted() const { return !streams_.empty(); }
  // What bounds its work on texts: it is given up once the client has gone, the deadline has passed
  // or the request was aborted.
  WorkLimits limits() const { return context_.rules.limits(&unwanted_); }
  bool unwanted() const { return unwanted_; }
  TokenStream::Gathered take(size_t stream);  // what has gathered there
  void send(const google::protobuf::Message& message);
  // Nothing is looked at afterwards; what was sent is still written. `last`: the engine's words, if
  // it had any.
  void end(const grpc::Status& status, const Ending* last = nullptr);
  // The status of an ending that is no answer.
  grpc::Status failure_of(const Ending& ending) const;

  // The reactor, which the final class is.
  virtual void start_write(const grpc::ByteBuffer* message) = 0;
  virtual void start_write_last(const grpc::ByteBuffer* message, const grpc::Status& status) = 0;
  virtual void start_finish(const grpc::Status& status) = 0;
  // And its events, from any thread.
  void written(bool ok);
  void left();
  void done();

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;  // valid until done()
  const Clock::time_point arrival_ = Clock::now();
  std::string id_;
  std::vector<std::shared_ptr<TokenStream>> streams_;  // once submitted
  std::atomic<bool> unwanted_{false};                  // gone_ or aborted_, or too late

 private:
  void refuse();
  void work() final;
  void failed(const std::exception& error) final;
  void end_early(grpc::Status status);
  void await_endings();
  bool writing();
  void begin_or_refuse();
  void look_on(bool busy);
  void not_wanted();
  void withdraw();
  void write_next();
  void tokens_came();
  bool stalled() const;
  grpc::Status reason_to_leave() const;
  void log(const grpc::Status& status, const Ending* last) const;

  ByteBudget::Share message_share_;

  // On the strand.
  bool withdrawn_ = false;
  bool finished_ = false;  // the last operation has been started
  grpc::Status refusal_;   // set before the launch
  std::deque<grpc::ByteBuffer> outbox_;
  grpc::ByteBuffer current_;             // what is being written
  std::optional<grpc::Status> outcome_;  // set by end()
  std::optional<grpc::Status>
      failure_;         // work() has thrown: only the engine's last word is awaited
  size_t endings_ = 0;  // taken from the streams

  // Set before the request is pushed: look at every token at once, also while writing.
  bool eager_ = false;

  std::atomic<bool> begun_{false};
  std::atomic<bool> writing_{false};
  std::atomic<bool> more_{false};  // poke when the write is through
  std::atomic<bool> gone_{false};  // the client is
  std::atomic<bool> aborted_{false};
  std::atomic<bool> shutdown_{false};  // aborted for that
};

// Ties a StreamCall to gRPC's reactor.
template <typename Reactor>
class ReactorCall : public Reactor, public StreamCall {
 public:
  void OnWriteDone(bool ok) final { written(ok); }
  void OnCancel() final { left(); }
  void OnDone() final { done(); }

 protected:
  using StreamCall::StreamCall;

 private:
  void start_write(const grpc::ByteBuffer* message) final { this->StartWrite(message); }
  void start_write_last(const grpc::ByteBuffer* message, const grpc::Status& status) final {
    this->StartWriteAndFinish(message, {}, status);
  }
  void start_finish(const grpc::Status& status) final { this->Finish(status); }
};

}  // namespace recurve
