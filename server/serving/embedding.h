#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "server/serving/events.h"
#include "server/serving/served_call.h"

namespace recurve {

// The sink of a call for embeddings.
class EmbedSink : public ResponseSink {
 public:
  // Converts the message; on a text thread, as it may be long. Once.
  virtual Refused read(EmbedRequest* asked) = 0;
  // Queues an event. RequestAccepted first, then one Embedded for each input, in their order, and
  // EmbedEnd last, unless finish() gets a refusal.
  virtual void send(EmbedEvent event) = 0;

 protected:
  ~EmbedSink() = default;
};

// The dimensions of a request's embeddings, or its refusal.
Refused check_dimensions(const EmbedRequest& asked, const ModelText& model, int32_t* dimensions);

// The embeddings of one request. All inputs are read and checked first. Then each is a request of
// the engine, as many at once as there are slots, so that a long list does not fill the queue.
class Embedding final : public ServedCall {
 public:
  // Both outlive it: see ResponseSink::released().
  Embedding(ServerCore& core, EmbedSink& sink)
      : ServedCall(core, sink, core.delivery_threads), sink_(sink) {
    one_prompt_ = false;
  }

 private:
  Refused begin() override;
  void poll(bool busy) override;

  Refused read_inputs(EmbedRequest asked);
  Refused submit_more();
  void take_ended();
  void accept();
  void send_ready();
  std::vector<float> of_length_1(std::vector<float> values) const;
  void fail(Refused refused);
  void conclude();

  EmbedSink& sink_;
  int32_t dimensions_ = 0;
  std::deque<ParsedRequest> inputs_;  // not submitted yet
  size_t count_ = 0;                  // of all
  int64_t tokens_ = 0;                // of all
  bool accepted_ = false;
  std::vector<std::optional<StreamEnd>> results_;  // of the inputs whose streams have ended
  size_t under_way_ = 0, sent_ = 0;
  Refused refusal_;  // sent after the engine has ended what was submitted
  StreamEnd usage_;
};

}  // namespace recurve
