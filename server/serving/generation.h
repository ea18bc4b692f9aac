#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/constraint/compiler.h"
#include "server/serving/answer.h"
#include "server/serving/events.h"
#include "server/serving/served_call.h"

namespace recurve {

// The door of a call that wants an answer.
class AnswerSink : public ResponseSink {
 public:
  // What was asked for; on a text thread, as it may be long. Once.
  virtual Refused read(TextRequest* asked) = 0;
  // The same, validated; null: it is to be read.
  virtual std::unique_ptr<ParsedRequest> take_parsed() { return nullptr; }
  // Waits to be written. RequestAccepted first and AnswerEnd last, unless finish() has a refusal.
  virtual void send(AnswerEvent event) = 0;

 protected:
  ~AnswerSink() = default;
};

// One answer, from what the door has read to the last word on every choice.
class Generation final : public ServedCall {
 public:
  // Both outlive it: see ResponseSink::released().
  Generation(ServerCore& core, AnswerSink& door)
      : ServedCall(core, door, core.delivery_threads), door_(door) {}

 private:
  struct Choice {
    Answer answer;
    // What is still to be sent; gathers while an earlier event is being written.
    AnswerDelta delta = {};
    size_t token_bytes = 0;  // about what its tokens take in a message
    bool told_to_stop = false;
    std::optional<StreamEnd> ending = {};
    std::optional<Clock::time_point> last_token = {};
  };

  Refused begin() override;
  void look(bool busy) override;

  Refused compile();
  Refused compiled(ConstraintCompiler::Outcome outcome);
  void look_at(size_t index, bool busy);
  void send_accepted(const Accepted& accepted);
  void send_scored(std::vector<SampledToken> tokens);
  void add_tokens(size_t index, TokenStream::Gathered& gathered);
  void send_delta(size_t index);
  void steer(size_t index, bool new_tokens);
  void time_tokens(Choice& choice, size_t tokens);
  void conclude();
  AnswerEnd end_of_all() const;

  AnswerSink& door_;
  bool acknowledges_ = false;
  bool logprobs_ = false;
  uint64_t seed_ = 0;
  std::optional<ParsedRequest> parsed_;  // while its constraint is compiled
  ConstraintCompiler::Waiter waiter_;
  bool accepted_ = false;
  std::vector<Choice> choices_;
};

}  // namespace recurve
