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

// The arguments of one step: see TakeTokensArgs, StepBatch and SampleArgs.
struct StepInputs {
  std::vector<int32_t> begin, planned, decodes, tokens, logit_rows, hidden_rows;
  std::vector<SampleRow> samples;
  int max_len = 0, tops = 0;
  bool decodes_only = true;  // one token of each sequence, no prompts

  int num_seqs() const { return static_cast<int>(planned.size()); }
  int rows() const { return static_cast<int>(tokens.size()); }
};

// One step, from its plan to its results. Between launch and finish the device owns the memory of
// inputs and results.
class Batch {
 public:
  // The rows and samples of one sequence. Samples of scored rows come first.
  struct Member {
    Sequence* sequence;  // null: it has ended since
    int rows;
    int first_sample, samples;
    bool sampled;              // the last sample is its next token
    int first_hidden, hidden;  // rows whose hidden state is pooled
    int scored() const { return samples - (sampled ? 1 : 0); }
  };
  // A state that is copied after the step, of so many tokens then.
  struct Copy {
    const StateSlot *from, *to;
    int64_t tokens;
  };

  // most_samples, most_hidden: of any step. width: of a hidden state; 0: there are none. The
  // backend outlives the batch.
  Batch(Backend& backend, int most_samples, int most_hidden, int64_t width);

  void clear();
  // Adds the next `rows` of the sequence's input, at least one. If its prompt is scored, all rows
  // are. A token is sampled at the end of the prompt, unless max_tokens is 0.
  void add(Sequence& sequence, int rows);
  // The choice continues from the state and the logits of `sequence`, which was added last.
  void add_choice(const Sequence& sequence, Sequence& choice);
  // The sequence is destroyed: its results are ignored.
  void remove(const Sequence& sequence);

  // The step leaves out decodes that are ready: see StepShape.
  void set_prompts_only(bool prompts_only) { prompts_only_ = prompts_only; }

  bool empty() const { return members_.empty(); }
  int rows() const { return inputs_.rows(); }
  StepShape shape() const;
  const StepInputs& inputs() const { return inputs_; }
  std::span<const Member> members() const { return members_; }
  // Whose first token is sampled, or the first one in this slot.
  std::span<Sequence* const> starting() const { return starting_; }
  std::span<const Copy> copies() const { return copies_; }

  // The result of a sample. The step is done.
  SampledToken token(int sample) const;
  // The member's hidden states: (hidden, width). The same.
  std::span<const float> hidden(const Member& member) const;

  float* hidden() { return reinterpret_cast<float*>(hidden_.get()); }
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
  const size_t width_;
  HostMemory hidden_;  // (most_hidden, width)
  Staging staging_;
  std::unique_ptr<Event> done_;
  Clock::time_point launched_;
  bool prompts_only_ = false;
};

}  // namespace recurve
