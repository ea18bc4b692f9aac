#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/request/response_sink.h"
#include "server/serving/call_trace.h"
#include "server/serving/server_core.h"

namespace recurve {

// The message of a request: its size, and whether the sink has reserved ServerCore::message_bytes
// for it.
struct CallMessage {
  int64_t bytes = 0;
  bool reserved = false;
  // Set on a text thread by a task that reads this many bytes: the call begins within that task if
  // its message is not longer. Zero: nothing remains to be read.
  std::optional<size_t> waited = {};
  double waited_seconds = 0;  // until that task ran
  // The frontend has registered the call's id itself, and forgets it.
  bool is_named = false;
};

// A call of any protocol that submits one request to the engine and passes on its results: the
// common part of an answer and of scoring. It lives until its sink is done().
//
// Events (tokens, a finished write, a client that disconnects) may come from any thread. They only
// poke the strand, which does all the work. The sink writes one event at a time; meanwhile tokens
// gather in the token streams and become the next event, so a slow client does not delay the
// engine.
//
// A submitted request is followed to its end even if the client disconnects, so the engine never
// calls a call that is destroyed.
class ServedCall : public Strand, public CallRegistry::Call {
 public:
  // Called by the sink, from any thread.
  // Starts on the text threads, or refuses. `id`: of the request, if it is known yet. Once, first;
  // the call may be destroyed when this returns.
  void open(const Identity& caller, CallMessage message = {}, const std::string& id = "");
  // A write that flush() began has finished after busy() was true; or something has arrived.
  using Strand::poke;
  const ServedModel& model() const { return *model_; }  // once it is chosen
  // The client has disconnected or is unreachable.
  void disconnected();
  // The sink is finished(), and everything is written. Last; released() follows.
  void done();

  void abort(CallRegistry::Reason reason) override;

 protected:
  ServedCall(ServerCore& core, ResponseSink& sink, Executor& executor);
  ~ServedCall() override;

  // Implemented by the final class; on the strand.
  // A refusal ends the call. May throw WorkUnwanted. Not called if the answer is unwanted by then.
  virtual Refused begin() = 0;
  // Processes what has arrived; called until end(), may throw WorkUnwanted. `busy`: the sink is
  // writing, and poll() is called again after that.
  virtual void poll(bool busy) = 0;

  // Used by the final class; on the strand.
  // Sets the model, which the message names, once and first. Refuses a caller who has its share of
  // the model's queue.
  Refused choose(std::shared_ptr<ServedModel> model);
  // Several times: the streams are appended.
  Refused submit(ParsedRequest& parsed);
  // The same without the engine: the caller pushes into the request's streams, to their end.
  Refused prepare(ParsedRequest& parsed);
  bool submitted() const { return !streams_.empty(); }
  // Reserves memory for a message, and releases that of the message before.
  Refused reserve(int64_t message_bytes);
  // Of work on texts, which stops when the client has disconnected, the deadline has passed or the
  // request was aborted.
  WorkLimits limits() const { return core_.limits(&unwanted_); }
  bool unwanted() const { return unwanted_; }
  TokenStream::Gathered take(size_t stream);
  // Ends the call; events that were sent are still written. `last`: the end of a stream, null if
  // the engine did not run the request.
  void end(Refused refusal, const StreamEnd* last = nullptr);
  // The refusal if the end of a stream is a failure.
  Refused failure_of(const StreamEnd& end) const;

  ServerCore& core_;
  std::shared_ptr<ServedModel> model_;  // null until choose()
  const Clock::time_point arrival_ = Clock::now();
  bool one_prompt_ = true;  // of all streams; false: each has a prompt
  Identity caller_ = kAnyone;
  std::string id_;
  std::vector<std::shared_ptr<TokenStream>> streams_;  // once submitted
  std::atomic<bool> unwanted_{false};                  // disconnected, aborted_ or too late

 private:
  Refused admit(const CallMessage& message, const std::string& id);
  void release_share();
  Refused check_size(const ParsedRequest& parsed) const;
  Refused claim(const std::string& id);
  void work() final;
  void failed(const std::exception& error) final;
  void end_early(Refusal refusal);
  void await_ends();
  void begin_or_refuse();
  void poll_or_fail(bool busy);
  void withdraw_soon();
  void withdraw();
  void cut();
  void on_tokens(const TokenStream& stream, bool eager);
  bool stalled() const;
  bool late() const;
  Refusal withdrawal_reason() const;
  void log_end(const Refused& refusal, const StreamEnd* last);
  void count(const Refused& refusal) const;

  ResponseSink& sink_;
  double waited_seconds_ = 0;  // before the call was opened
  bool counted_ = false;       // as a request of its tenant
  bool shares_ = false;        // and as one of the model
  bool is_named_ = false;      // by its frontend
  ByteBudget::Share message_share_;
  CallTrace trace_;

  // On the strand.
  bool eager_ = false;  // process each token at once, even while the sink is busy
  bool withdrawn_ = false;
  bool ended_ = false;  // end() was called
  Refused refusal_;     // set before the launch
  // work() has thrown: only the end of the streams is awaited.
  Refused failure_;
  size_t ends_ = 0;  // taken from the streams
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0;

  std::recursive_mutex cut_mutex_;  // a sink may end the call when it is cut
  bool cut_ = false;                // or done() was called

  std::atomic<bool> begun_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> shutdown_{false};  // aborted by the shutdown
};

}  // namespace recurve
