#pragma once
#include <span>

#include "server/engine/batch.h"
#include "server/observe/engine_metrics.h"
#include "server/request/engine_stats.h"

namespace recurve {

// Sends the tokens of a finished step to the streams.
class Delivery {
 public:
  // All references outlive it.
  Delivery(const SamplingVocab& vocab, MaskWorkers& masks, EngineStats& stats,
           EngineMetrics& metrics)
      : vocab_(vocab), masks_(masks), stats_(stats), metrics_(metrics) {}

  // Call it when the step is done.
  void deliver(const Batch& batch);

 private:
  bool score_prompt(Sequence& sequence, const Batch& batch, int first, int count);
  bool pool(Sequence& sequence, std::span<const float> hidden, int rows);
  bool failed(Sequence& sequence);
  void deliver_token(Sequence& sequence, SampledToken token);

  const SamplingVocab vocab_;
  MaskWorkers& masks_;
  EngineStats& stats_;
  EngineMetrics& metrics_;
};

}  // namespace recurve
