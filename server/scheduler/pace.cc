#include "server/scheduler/pace.h"

#include <algorithm>
#include <cmath>

namespace recurve {
namespace {

// Of each error, this much is learnt: the memory is about as many steps long as its inverse.
constexpr double kLearn = 0.2;
// Of the time that a step may take, as no step takes exactly what was expected.
constexpr double kAimAt = 0.9;

}  // namespace

// Normalised least mean squares: the error of the prediction is spread over the two numbers in
// proportion to what each contributes, so that a full step and one without prompts correct them
// equally fast. Rows are counted in units of the largest step.
void Pace::observe(const StepShape& step, double seconds) {
  if (step.decodes == 0 && step.prompt_rows == 0) return;
  const double share = static_cast<double>(step.prompt_rows) / most_rows_;
  if (!begun_) {
    begun_ = true;
    (step.prompt_rows > 0 ? per_row_ : base_) = seconds / std::max(step.prompt_rows, 1);
    recent_ = seconds;
  }
  const double error = seconds - this->seconds(step.prompt_rows);
  const double correction = kLearn * error / (1 + share * share);
  base_ = std::max(0.0, base_ + correction);
  per_row_ = std::max(0.0, per_row_ + correction * share / most_rows_);
  recent_ += kLearn * (seconds - recent_);
}

int Pace::prompt_rows(int decodes) const {
  if (decodes == 0 || limit_ == 0 || !begun_) return most_rows_;
  const double room = kAimAt * limit_ - base_;
  if (room <= 0) return 0;
  if (per_row_ * most_rows_ <= room) return most_rows_;
  return static_cast<int>(std::floor(room / per_row_));
}

double Pace::prompt_rate(int decodes) const {
  const int rows = std::max(prompt_rows(decodes), 1);
  const double seconds = this->seconds(rows);
  return begun_ && seconds > 0 ? rows / seconds : 0;
}

}  // namespace recurve
