#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"
#include "server/engine/sequence.h"
#include "server/engine/staging.h"
#include "server/scheduler/pace.h"

namespace recurve {

// What goes to the device for one step, as TakeTokensArgs, StepBatch and SampleArgs have it.
struct StepInputs {
  std::vector<int32_t> begin, planned, decodes, tokens, logit_rows;
  std::vector<SampleRow> samples;
  int max_len = 0, tops = 0;
  bool decodes_only = true;  // all that is done is one token of each sequence

  int num_seqs() const { return static_cast<int>(planned.size()); }
  int rows() const { return static_cast<int>(tokens.size()); }
};

// One step, from its plan to its results. Between the two it is under way on the device, to which
// the memory of inputs and results then belongs.
class Batch {
 public:
  // What one sequence brings, and which samples are taken of it: the scored rows first.
  struct Member {
    Sequence* sequence;  // null: it has ended meanwhile
    int rows;
    int first_sample, samples;
    bool sampled;  // the last sample is its next token
    int scored() const { return samples - (sampled ? 1 : 0); }
  };
  // A state that is copied once the step has advanced it.
  struct Copy {
    const StateSlot *from, *to;
  };

  // most_samples: of any step. The backend outlives the batch.
  Batch(Backend& backend, int most_samples);

  void clear();
  // The sequence takes part with the next `rows` of its input, at least one. If its prompt is
  // scored all of them are; a token is sampled where the prompt ends, if any is wanted.
  void add(Sequence& sequence, int rows);
  // The choice goes on from the state and the logits of the sequence, which was added last.
  void add_choice(const Sequence& sequence, Sequence& choice);
  // The sequence is gone: what the step says of it is not heard.
  void remove(const Sequence& sequence);

  // Whether others' next tokens wait for it.
  void set_prompts_only(bool prompts_only) { prompts_only_ = prompts_only; }

  bool empty() const { return members_.empty(); }
  int rows() const { return inputs_.rows(); }
  StepShape shape() const;
  const StepInputs& inputs() const { return inputs_; }
  std::span<const Member> members() const { return members_; }
  std::span<Sequence* const> starting() const { return starting_; }  // whose answers begin
  std::span<const Copy> copies() const { return copies_; }

  // Once the step is done: what has become of a sample.
  SampledToken token(int sample) const;

  SampleResult* results() { return reinterpret_cast<SampleResult*>(results_.get()); }
  TopLogit* top() { return reinterpret_cast<TopLogit*>(top_.get()); }
  Staging& staging() { return staging_; }
  Event& done() { return *done_; }
  Clock::time_point launched() const { return launched_; }
  void set_launched(Clock::time_point when) { launched_ = when; }

 private:
  void add_prompt(const Sequence& sequence, int rows);
  void add_logits(int row) { inputs_.logit_rows.push_back(row); }
  void add_sample(const Sequence& sequence, int32_t scored, int top);

  StepInputs inputs_;
  std::vector<Member> members_;
  std::vector<Sequence*> starting_;
  std::vector<Copy> copies_;
  HostMemory results_, top_;  // (most_samples), (most_samples, kMostTop)
  Staging staging_;
  std::unique_ptr<Event> done_;
  Clock::time_point launched_;
  bool prompts_only_ = false;
};

}  // namespace recurve
