#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/serving/events.h"
#include "server/serving/score_input.h"
#include "server/serving/served_call.h"

namespace recurve {

// The sink of a call that sends a text to be scored.
class ScoreSink : public ResponseSink {
 public:
  // Starts to read the next piece. The call is poked when the piece or the end of the text arrives.
  virtual void ask() = 0;
  // What has arrived since the last call.
  enum class Arrival { kNothing, kPiece, kEnd };
  virtual Arrival arrived() = 0;
  // The piece that has arrived: the bytes of its message, and its content.
  virtual int64_t piece_bytes() const = 0;
  // The first one has options.
  virtual Refused read(ScorePiece* piece) = 0;
  // Queues an event. RequestAccepted first and ScoreEnd last, unless finish() gets a refusal.
  virtual void send(ScoreEvent event) = 0;

 protected:
  ~ScoreSink() = default;
};

// The score of one text: reads the text as it arrives, passes its ids to the engine and sums up
// their log-probabilities.
//
// At most kAhead ids are in flight. The next piece is read when there is room for it, so a client
// that sends faster than the engine computes, or than it reads progress, waits.
class Scoring final : public ServedCall {
 public:
  // Both outlive it: see ResponseSink::released().
  Scoring(ServerCore& core, ScoreSink& sink);

 private:
  Refused begin() override { return {}; }
  void poll(bool busy) override;

  Refused read_on();
  Refused take_piece();
  Refused begin_input(const ScoreOptions& options);
  Refused start_scoring();
  void feed_ids();
  void refuse(const Refusal& refusal);

  void take_scored();
  void add_scored(std::vector<SampledToken> tokens);
  void send_progress(std::vector<SampledToken> tokens);
  void conclude(const StreamEnd& ending);

  ScoreSink& sink_;
  bool asked_ = false;                                         // a piece is awaited
  ScoreSink::Arrival arrival_ = ScoreSink::Arrival::kNothing;  // not read yet
  std::optional<ScoreInput> input_;                            // once the first piece has come
  std::shared_ptr<PromptFeed> feed_;                           // while the engine needs more ids
  Refused refusal_;  // sent after the engine has ended the request
  bool concluded_ = false;
  int64_t fed_tokens_ = 0;  // to the engine, with BOS
  int64_t scored_tokens_ = 0;
  double sum_logprob_ = 0;  // in the order of the tokens
};

}  // namespace recurve
