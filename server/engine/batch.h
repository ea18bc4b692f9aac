#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "server/engine/sequence.h"
#include "server/scheduler/scheduler.h"

namespace recurve {

// The rows of one step, from sequences to logits. The memory is kept from step to step.
class Batch {
 public:
  // What one sequence brings.
  struct Member {
    Sequence* sequence;
    int rows;
    int first_logits;  // its first row of logits
  };

  // All references outlive the batch.
  Batch(const Model& model, Backend& backend, Stream& stream, const StepBounds& bounds, int slots);

  void clear();
  // The sequence takes part with the next `rows` of its input, at least one. Logits are wanted of
  // all of them if the prompt is scored, and else of the last if a token is to be sampled from it.
  void add(Sequence& sequence, int rows);
  // Advances the states of all members; the logits are there when it returns.
  void forward(const StatePool& pool);

  bool empty() const { return members_.empty(); }
  int rows() const { return static_cast<int>(tokens_.size()); }
  std::span<const Member> members() const { return members_; }
  std::span<const float> logits(int row) const;  // (vocab)

 private:
  const Model& model_;
  Backend& backend_;
  Stream& stream_;
  std::vector<Member> members_;
  std::vector<int32_t> tokens_, begin_, slots_, logit_rows_;
  int max_len_ = 0;
  Arena arena_;
  Buffer device_input_;        // begin, slots, tokens, logit_rows
  Buffer device_logits_;       // (bounds.logits, vocab)
  std::vector<float> logits_;  // (bounds.logits, vocab)
};

}  // namespace recurve
