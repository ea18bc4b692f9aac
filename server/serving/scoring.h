#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "server/serving/events.h"
#include "server/serving/score_input.h"
#include "server/serving/served_call.h"

namespace recurve {

// The door of a call that sends a text to be scored.
class ScoreSink : public ResponseSink {
 public:
  // The next piece is wanted: the call is poked when it, or the end of the text, has come.
  virtual void ask() = 0;
  // What has come since, said once.
  enum class Arrival { kNothing, kPiece, kEnd };
  virtual Arrival arrived() = 0;
  // The piece that has arrived: the bytes of its message, and what it says.
  virtual int64_t piece_bytes() const = 0;
  virtual Refused read(ScorePiece* piece) = 0;
  // Waits to be written. RequestAccepted first and ScoreEnd last, unless finish() has a refusal.
  virtual void send(ScoreEvent event) = 0;

 protected:
  ~ScoreSink() = default;
};

// One text's score: reads the text as it comes, gives its ids to the engine and sums up what that
// says.
//
// At most kAhead ids are under way: the next piece is asked for when there is room, so what the
// engine has not absorbed, or the client not read, is bounded, and a client that goes on sending
// waits.
class Scoring final : public ServedCall {
 public:
  // Both outlive it: see ResponseSink::released().
  Scoring(ServerCore& core, ScoreSink& door);

 private:
  Refused begin() override { return {}; }
  void look(bool busy) override;

  Refused read_on();
  Refused take_piece();
  Refused start_scoring();
  void give_more();
  void refuse(const Refusal& refusal);

  void take_scored();
  void add_scored(std::vector<SampledToken> tokens);
  void send_progress(std::vector<SampledToken> tokens);
  void conclude(const StreamEnd& ending);

  ScoreSink& door_;
  bool asked_ = false;                                         // a piece is awaited
  ScoreSink::Arrival arrival_ = ScoreSink::Arrival::kNothing;  // that was not read yet
  ScoreInput input_;
  std::shared_ptr<PromptFeed> feed_;  // while ids are still to be given to the engine
  Refused refusal_;                   // awaits the engine's last word
  bool concluded_ = false;
  int64_t given_tokens_ = 0;  // to the engine, BOS included
  int64_t scored_tokens_ = 0;
  double sum_logprob_ = 0;  // in the order of the tokens
};

}  // namespace recurve
