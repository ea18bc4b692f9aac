#pragma once

namespace recurve {

// What a step was made of.
struct StepShape {
  int decodes = 0;            // sequences that brought their next token
  int prompt_rows = 0;        // tokens of prompts
  bool prompts_only = false;  // while it was done others' next tokens waited: it has no decodes
};

// How fast this machine computes, learnt from the steps it has done: a step takes
//   seconds = base + prompt_rows * per_row,
// both followed with a short memory, as decodes come and go and their cost is part of the base. It
// says how many rows of prompts a step can take without keeping running streams waiting for longer
// than they should, and how fast prompts are absorbed then.
class Pace {
 public:
  // most_rows: of prompts in a step, at most. step_seconds: how long a step may take in which
  // somebody waits for the next token; 0: however long.
  Pace(int most_rows, double step_seconds)
      : most_rows_(most_rows), limit_(step_seconds), usual_rows_(most_rows) {}

  void observe(const StepShape& step, double seconds);

  // What prompts may take of the next step. Everything if no sequence decodes; may be less than
  // a chunk, or nothing. shared: several tenants are around. The next request of one of them waits
  // for the end of the step, so it takes a third of the time that it may, or twice what it takes
  // without prompts where that is more, and that holds if no sequence decodes too.
  int prompt_rows(int decodes, bool shared = false) const;

  // Of prompts, as many as take as long as the rest of a step: see StepBounds. However many where a
  // step may take however long.
  int max_prompt_rows_with_decodes() const;

  // Whether decodes are at least half of a step, and the rest, which every step takes, is not: one
  // of a short prompt alone is over much sooner then, and costs the decodes little. See StepBounds.
  bool decodes_are_most() const;

  double seconds(int prompt_rows) const { return base_ + per_row_ * prompt_rows; }
  // Seconds between two tokens of a running stream, of late; 0: none known.
  double step_seconds() const { return recent_; }
  // Prompt tokens absorbed in a second while prompts take what they may; 0: not known.
  double prompt_rate(int decodes, bool shared = false) const;

 private:
  const int most_rows_;
  const double limit_;
  double usual_rows_;  // of prompts in a step that has some
  bool begun_ = false;
  double base_ = 0, per_row_ = 0;
  double least_ = 0;  // that a step with decodes alone has taken; 0: there was none
  double recent_ = 0;
};

}  // namespace recurve
