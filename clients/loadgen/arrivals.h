#pragma once
#include <optional>
#include <string>
#include <vector>

#include "clients/loadgen/report/distribution.h"
#include "clients/loadgen/trace.h"

namespace recurve::loadgen {

// When conversations begin in an open loop, whatever becomes of those before them.
class Arrivals {
 public:
  // Gaps are exponentially distributed with the mean 1 / rate: many users who know nothing of each
  // other.
  static Arrivals poisson(double per_second, uint64_t seed);
  static Arrivals constant(double per_second);
  // As the trace has them, `speed` times as fast; from its beginning again when it ends.
  static Arrivals trace(std::vector<TraceRow> rows, double speed);

  // Seconds after the start, ascending.
  double next();

 private:
  enum class Kind { kPoisson, kConstant, kTrace };
  Arrivals(Kind kind, double rate, uint64_t seed) : kind_(kind), rate_(rate), rng_(seed) {}

  Kind kind_;
  double rate_;  // arrivals a second; kTrace: its speed
  Rng rng_;
  std::vector<TraceRow> rows_;
  uint64_t count_ = 0;
  double time_ = 0;
};

}  // namespace recurve::loadgen
