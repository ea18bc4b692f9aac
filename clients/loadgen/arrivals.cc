#include "clients/loadgen/arrivals.h"

namespace recurve::loadgen {

Arrivals Arrivals::poisson(double per_second, uint64_t seed) {
  return {Kind::kPoisson, per_second, seed};
}

Arrivals Arrivals::constant(double per_second) { return {Kind::kConstant, per_second, 0}; }

Arrivals Arrivals::trace(std::vector<TraceRow> rows, double speed) {
  Arrivals arrivals(Kind::kTrace, speed, 0);
  arrivals.rows_ = std::move(rows);
  return arrivals;
}

double Arrivals::next() {
  const uint64_t number = count_++;
  if (kind_ == Kind::kConstant) return static_cast<double>(number) / rate_;
  if (kind_ == Kind::kPoisson) {
    time_ += std::exponential_distribution(rate_)(rng_);
    return time_;
  }
  const size_t row = number % rows_.size();
  // Between one pass of the trace and the next lies its mean gap.
  if (number > 0 && row == 0) {
    const double length = rows_.back().arrival;
    time_ += rows_.size() > 1 ? length + length / static_cast<double>(rows_.size() - 1) : 1.0;
  }
  return (time_ + rows_[row].arrival) / rate_;
}

}  // namespace recurve::loadgen
