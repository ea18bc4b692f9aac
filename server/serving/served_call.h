#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/request/response_sink.h"
#include "server/serving/call_trace.h"
#include "server/serving/server_core.h"

namespace recurve {

// The message of a request that has come: how much there is to read. Its door may hold memory for
// it already, of ServerCore::message_bytes.
struct CallMessage {
  int64_t bytes = 0;
  bool held_by_door = false;
  // Set on a text thread, by a task that reads so many bytes: the call begins within it if its
  // message is not longer. Zero where nothing is left to read.
  std::optional<size_t> waited = {};
  double waited_seconds = 0;  // until that task ran
};

// A call that puts one request to the engine and passes on what comes of it, whatever the protocol:
// what an answer and the scoring of a text have in common. It lives until its door is done().
//
// Events (tokens, a write that is through, a client that left) may come from any thread; each only
// pokes the strand, which does all the work. The door writes one thing at a time. What the engine
// gives meanwhile gathers in the token streams and goes out with the next event: a slow client
// costs the engine nothing.
//
// A request once submitted is followed to its ending, whatever happens to the client; so the engine
// never calls into a call that is gone.
class ServedCall : public Strand, public CallRegistry::Call {
 public:
  // What the door calls, from any thread.
  // Begins on the text threads, or refuses; id: the request's, if that is known yet. Once, before
  // all else; the call may be gone when this returns.
  void open(const Identity& caller, CallMessage message = {}, const std::string& id = "");
  // What flush() began is through, and busy() was true meanwhile; or something has come.
  using Strand::poke;
  const ServedModel& model() const { return *model_; }
  // The client has gone, or can no longer be reached.
  void left();
  // The door is finished(), and what it has said has gone. The last call; released() follows.
  void done();

  void abort(CallRegistry::Reason reason) override;

 protected:
  ServedCall(ServerCore& core, ResponseSink& door, Executor& executor);
  ~ServedCall() override;

  // What the final class does; on the strand.
  // A refusal ends the call. May throw WorkUnwanted; not called where nobody wants the answer by
  // then.
  virtual Refused begin() = 0;
  // Something may have come; called until end(), may throw WorkUnwanted. `busy`: the door is, and
  // there will be another look when it is not.
  virtual void look(bool busy) = 0;

  // What it can use for that; on the strand.
  Refused submit(ParsedRequest& parsed);
  bool submitted() const { return !streams_.empty(); }
  // Bytes that a message holds from now on, instead of those before it.
  Refused hold(int64_t message_bytes);
  // What bounds its work on texts: it is given up once the client has gone, the deadline has passed
  // or the request was aborted.
  WorkLimits limits() const { return core_.limits(&unwanted_); }
  bool unwanted() const { return unwanted_; }
  TokenStream::Gathered take(size_t stream);  // what has gathered there
  // Nothing is looked at afterwards; what was sent is still written. `last`: the engine's words, if
  // it had any.
  void end(Refused refusal, const StreamEnd* last = nullptr);
  // Why an ending is no answer.
  Refused failure_of(const StreamEnd& ending) const;

  ServerCore& core_;
  const std::shared_ptr<ServedModel> model_ = core_.model();
  const Clock::time_point arrival_ = Clock::now();
  Identity caller_ = kAnyone;
  std::string id_;
  std::vector<std::shared_ptr<TokenStream>> streams_;  // once submitted
  std::atomic<bool> unwanted_{false};                  // gone, aborted_ or too late

 private:
  Refused admit(const CallMessage& message, const std::string& id);
  Refused check_share();
  void leave_share();
  Refused check_size(const Request& request) const;
  Refused claim(const std::string& id);
  void work() final;
  void failed(const std::exception& error) final;
  void end_early(Refusal refusal);
  void await_endings();
  void begin_or_refuse();
  void look_on(bool busy);
  void not_wanted();
  void withdraw();
  void tokens_came();
  bool stalled() const;
  bool late() const;
  Refusal reason_to_leave() const;
  void write_down(const Refused& refusal, const StreamEnd* last);
  void count(const Refused& refusal) const;

  ResponseSink& door_;
  double waited_seconds_ = 0;  // before the call was opened
  bool counted_ = false;       // among what its tenant has under way
  ByteBudget::Share message_share_;
  CallTrace trace_;

  // On the strand.
  bool withdrawn_ = false;
  bool ended_ = false;  // end() was called
  Refused refusal_;     // set before the launch
  // work() has thrown: only the engine's last word is awaited.
  Refused failure_;
  size_t endings_ = 0;  // taken from the streams
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0;

  // Set before the request is pushed: look at every token at once, also while the door is busy.
  bool eager_ = false;

  std::atomic<bool> begun_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> shutdown_{false};  // aborted for that
};

}  // namespace recurve
