#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/constraint/compiler.h"
#include "server/serving/answer.h"
#include "server/serving/events.h"
#include "server/serving/served_call.h"
#include "server/serving/shared_sessions.h"

namespace recurve {

// The sink of a call for an answer.
class AnswerSink : public ResponseSink {
 public:
  // Converts the message; on a text thread, as it may be long. Once.
  virtual Refused read(TextRequest* asked) = 0;
  // The validated request; null: use read().
  virtual std::unique_ptr<ParsedRequest> take_parsed() { return nullptr; }
  // Queues an event. RequestAccepted first and AnswerEnd last, unless finish() gets a refusal.
  virtual void send(AnswerEvent event) = 0;

 protected:
  ~AnswerSink() = default;
};

// One request for an answer, from its message to the end of every choice.
class Generation final : public ServedCall {
 public:
  // Both outlive it: see ResponseSink::released().
  Generation(ServerCore& core, AnswerSink& sink)
      : ServedCall(core, sink, core.delivery_threads), sink_(sink) {}

 private:
  struct Choice {
    Answer answer;
    // To be sent; gathers while an earlier event is being written.
    AnswerDelta delta = {};
    size_t token_bytes = 0;  // approximate bytes of its tokens in a message
    bool stop_sent = false;
    std::optional<StreamEnd> end = {};
    std::optional<Clock::time_point> last_token = {};
  };

  Refused begin() override;
  void poll(bool busy) override;

  Refused begin_turn(ParsedRequest& parsed);
  void poll_turn();
  Refused start_turn(SharedTurn::Begun begun);
  bool end_turn();
  Refused compile();
  Refused compiled(ConstraintCompiler::Outcome outcome);
  void poll_choice(size_t index, bool busy);
  void send_accepted(const Accepted& accepted);
  void send_scored(std::vector<SampledToken> tokens);
  void add_tokens(size_t index, TokenStream::Gathered& gathered);
  void send_delta(size_t index);
  void steer(size_t index, bool new_tokens);
  void time_tokens(Choice& choice, size_t tokens);
  void conclude();
  AnswerEnd end_of_all() const;

  AnswerSink& sink_;
  bool acknowledges_ = false;
  bool logprobs_ = false;
  uint64_t seed_ = 0;
  std::optional<ParsedRequest> parsed_;  // until it is submitted
  ConstraintCompiler::Waiter waiter_;
  bool accepted_ = false;
  std::vector<Choice> choices_;
  // A turn of a session that may be shared. Null: it is not.
  std::unique_ptr<SharedTurn> turn_;
  RecordedAnswer answer_;    // of the turn so far
  bool committing_ = false;  // the end of the answer waits for it
};

}  // namespace recurve
