#pragma once
#include <functional>
#include <utility>

#include "model/model.h"

namespace recurve::testing {

// Another model, whose steps are told before they are computed: to let time pass, or to count them.
// Of a step's pointers nothing may be read, as they are the device's.
class TimedModel final : public Model {
 public:
  TimedModel(const Model& model, std::function<void(const StepBatch&)> on_step)
      : model_(model), on_step_(std::move(on_step)) {}

  const ModelInfo& info() const override { return model_.info(); }
  StateLayout state_layout() const override { return model_.state_layout(); }
  size_t arena_bytes(const StepLimits& limits) const override { return model_.arena_bytes(limits); }
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override {
    on_step_(batch);
    model_.forward(batch, states, arena, stream, logits);
  }

 private:
  const Model& model_;
  const std::function<void(const StepBatch&)> on_step_;
};

}  // namespace recurve::testing
