#pragma once
#include <memory>
#include <span>
#include <vector>

#include "server/engine/batch.h"
#include "server/observe/metrics.h"
#include "server/request/engine_stats.h"
#include "server/sampling/sampler.h"

namespace recurve {

// Turns a step's logits into tokens, hands them to the clients and makes them the next input.
class Delivery {
 public:
  // All references outlive it.
  Delivery(const SamplingVocab& vocab, StatePool& pool, EngineStats& stats, Metrics& metrics)
      : pool_(pool), stats_(stats), metrics_(metrics), sampler_(vocab) {}

  // `forked` receives the further choices of prompts that are through.
  void deliver(const Batch& batch, std::vector<std::unique_ptr<Sequence>>& forked);

 private:
  void go_on(Sequence& sequence, const Batch& batch, const Batch::Member& member,
             std::vector<std::unique_ptr<Sequence>>& forked);
  void score_prompt(Sequence& sequence, const Batch& batch, const Batch::Member& member);
  void fork_choices(Sequence& sequence, std::span<const float> logits,
                    std::vector<std::unique_ptr<Sequence>>& forked);
  void sample(Sequence& sequence, std::span<const float> logits);

  StatePool& pool_;
  EngineStats& stats_;
  Metrics& metrics_;
  Sampler sampler_;
};

}  // namespace recurve
