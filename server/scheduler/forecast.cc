#include "server/scheduler/forecast.h"

#include <algorithm>
#include <cstddef>

namespace recurve {
namespace {

// Weight of the newest request.
constexpr double kLearnOfEnded = 0.1;

double slot_wait(Ahead& ahead) {
  if (ahead.slots_missing <= 0 || ahead.releases.empty()) return 0;
  const size_t in_use = ahead.releases.size();
  const auto before = static_cast<size_t>(ahead.slots_missing - 1);
  const auto last = ahead.releases.begin() + static_cast<ptrdiff_t>(before % in_use);
  std::nth_element(ahead.releases.begin(), last, ahead.releases.end());
  return *last + static_cast<double>(before / in_use) * ahead.hold_seconds;
}

}  // namespace

void HoldTimeEstimator::observe(double hold_seconds, int64_t generated, int64_t max_tokens) {
  const double share =
      max_tokens > 0 ? static_cast<double>(generated) / static_cast<double>(max_tokens) : 1;
  if (!begun_) hold_ = hold_seconds;
  begun_ = true;
  hold_ += kLearnOfEnded * (hold_seconds - hold_);
  share_ += kLearnOfEnded * (share - share_);
}

double expected_wait(Ahead ahead) {
  const double prompts = ahead.prompt_rate > 0 ? ahead.prompt_tokens / ahead.prompt_rate : 0;
  return std::max(slot_wait(ahead), prompts);
}

}  // namespace recurve
