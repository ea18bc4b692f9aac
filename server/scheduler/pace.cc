#include "server/scheduler/pace.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace recurve {
namespace {

// Learning rate: the memory is about 1 / kLearn steps.
constexpr double kLearn = 0.2;
// Part of the bound that is aimed at, as the model is inexact.
constexpr double kAimAt = 0.9;
// Part of the bound while several tenants are active.
constexpr double kSharedPart = 1.0 / 3;

}  // namespace

// Normalised least mean squares: the error of the prediction is divided among the two parameters in
// proportion to their contributions. Rows are in units of the recent mean, so that steps with and
// without prompts correct the parameters equally fast.
// A step that left out decodes counts as one with them: the decodes' step follows and takes as long
// as the base.
void Pace::observe(const StepShape& step, double seconds) {
  if (step.decodes == 0 && step.prompt_rows == 0) return;
  if (step.prompts_only) seconds += base_;
  if (step.prompt_rows == 0) least_ = least_ == 0 ? seconds : std::min(least_, seconds);
  const auto rows = static_cast<double>(step.prompt_rows);
  if (!begun_) {
    begun_ = true;
    (rows > 0 ? per_row_ : base_) = seconds / std::max(rows, 1.0);
    recent_ = seconds;
  }
  if (rows > 0) usual_rows_ += kLearn * (rows - usual_rows_);
  const double share = rows / usual_rows_;
  const double error = seconds - this->seconds(step.prompt_rows);
  const double correction = kLearn * error / (1 + share * share);
  base_ = std::max(0.0, base_ + correction);
  per_row_ = std::max(0.0, per_row_ + correction * share / usual_rows_);
  // Neither can exceed the whole step. This corrects the effect of slow first steps at once.
  base_ = std::min(base_, seconds);
  if (rows > 0) per_row_ = std::min(per_row_, seconds / rows);
  recent_ += kLearn * (seconds - recent_);
}

int Pace::prompt_rows(int decodes, bool shared) const {
  if ((decodes == 0 && !shared) || limit_ == 0 || !begun_) return most_rows_;
  const double seconds = shared ? std::clamp(2 * base_, kSharedPart * limit_, limit_) : limit_;
  const double room = kAimAt * seconds - base_;
  if (room <= 0) return 0;
  if (per_row_ * most_rows_ <= room) return most_rows_;
  return static_cast<int>(std::floor(room / per_row_));
}

int Pace::max_prompt_rows_with_decodes() const {
  constexpr int kAny = std::numeric_limits<int>::max();
  if (limit_ == 0 || !begun_ || base_ >= per_row_ * kAny) return kAny;
  return static_cast<int>(base_ / per_row_);
}

bool Pace::decodes_are_most() const { return limit_ > 0 && least_ > 0 && base_ >= 2 * least_; }

double Pace::prompt_rate(int decodes, bool shared) const {
  const int rows = std::max(prompt_rows(decodes, shared), 1);
  const double seconds = this->seconds(rows);
  return begun_ && seconds > 0 ? rows / seconds : 0;
}

}  // namespace recurve
