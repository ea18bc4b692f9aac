#include "clients/loadgen/sweep.h"

#include <cmath>
#include <optional>

namespace recurve::loadgen {

double find_highest_rate(const SweepOptions& options,
                         const std::function<bool(double rate)>& holds) {
  constexpr double kStep = 1.5;
  std::optional<double> held, failed;
  double rate = options.first_rate;
  for (int trial = 0; trial < options.max_trials; ++trial) {
    (holds(rate) ? held : failed) = rate;
    if (held && failed && *failed <= *held * (1 + options.precision)) break;
    if (!failed) {
      rate = *held * kStep;
    } else if (!held) {
      rate = *failed / kStep;
    } else {
      rate = std::sqrt(*held * *failed);
    }
  }
  return held.value_or(0);
}

}  // namespace recurve::loadgen
