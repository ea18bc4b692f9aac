#pragma once
#include <cstdint>
#include <vector>

namespace recurve {

// Estimates from ended requests how long a slot is held.
class HoldTimeEstimator {
 public:
  // A sequence has ended.
  void observe(double hold_seconds, int64_t generated, int64_t max_tokens);

  // Expected further tokens of a sequence that may generate `may_generate`.
  double expected_tokens(int64_t may_generate) const {
    return share_ * static_cast<double>(may_generate);
  }
  double hold_seconds() const { return hold_; }  // mean; 0: unknown

 private:
  bool begun_ = false;
  double share_ = 1;  // generated tokens over max_tokens
  double hold_ = 0;
};

// The load ahead of a request at one moment.
struct Ahead {
  int slots_missing = 0;              // that must become free first; <= 0: none
  std::vector<double> releases = {};  // seconds until each slot in use is free, in any order
  double hold_seconds = 0;            // mean time that a slot is held
  double prompt_tokens = 0;           // to absorb before the request's
  double prompt_rate = 0;             // prompt tokens a second; 0: unknown
};

// Seconds that the request waits for others: slots become free as sequences end, then in rounds of
// the mean hold time; prompts are absorbed at the same time.
double expected_wait(Ahead ahead);

}  // namespace recurve
