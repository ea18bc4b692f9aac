#pragma once
#include <functional>

namespace recurve::loadgen {

struct SweepOptions {
  double first_rate = 1;    // the first to be tried
  double precision = 0.05;  // the answer is at most so much below the lowest rate that failed
  int max_trials = 16;
};

// The highest rate for which `holds` returns true: goes up or down in steps of half until one
// holds and one does not, then halves the gap on a logarithmic scale. 0 where none held. Rates that
// failed are not tried again, so a trial that failed by accident makes the answer too low, never
// too high.
double find_highest_rate(const SweepOptions& options,
                         const std::function<bool(double rate)>& holds);

}  // namespace recurve::loadgen
