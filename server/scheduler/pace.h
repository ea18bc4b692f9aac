#pragma once

namespace recurve {

// The contents of a step.
struct StepShape {
  int decodes = 0;            // sequences that absorbed their last token
  int prompt_rows = 0;        // tokens of prompts
  bool prompts_only = false;  // decodes were ready and left out
};

// Estimates from past steps how fast this machine computes. Model:
//   seconds = base + prompt_rows * per_row,
// both with a short memory, because the cost of decodes is part of `base` and their number changes.
// Gives the rows of prompts that a step can have within its bound, and the rate of prompts then.
class Pace {
 public:
  // most_rows: bound of prompt rows in a step. step_seconds: bound of the duration of a step with
  // decodes; 0: none.
  Pace(int most_rows, double step_seconds)
      : most_rows_(most_rows), limit_(step_seconds), usual_rows_(most_rows) {}

  void observe(const StepShape& step, double seconds);

  // Prompt rows that the next step may have: all if no sequence decodes; may be less than a chunk,
  // or 0. shared: several tenants are active. A new request waits for the end of the step, so the
  // bound is a third of step_seconds then, or twice the duration without prompts if that is more,
  // also if no sequence decodes.
  int prompt_rows(int decodes, bool shared = false) const;

  // Prompt rows that take as long as the rest of a step: see StepBounds. Unbounded without
  // step_seconds.
  int max_prompt_rows_with_decodes() const;

  // Decodes take at least half of a step's duration: a step with a short prompt alone is much
  // shorter then and delays the decodes little. See StepBounds.
  bool decodes_are_most() const;

  double seconds(int prompt_rows) const { return base_ + per_row_ * prompt_rows; }
  // Recent seconds between two tokens of a sequence; 0: unknown.
  double step_seconds() const { return recent_; }
  // Prompt tokens a second while steps have all prompt rows that they may; 0: unknown.
  double prompt_rate(int decodes, bool shared = false) const;

 private:
  const int most_rows_;
  const double limit_;
  double usual_rows_;  // mean prompt rows of steps with prompts
  bool begun_ = false;
  double base_ = 0, per_row_ = 0;
  double least_ = 0;  // shortest step with decodes alone; 0: unknown
  double recent_ = 0;
};

}  // namespace recurve
