#pragma once
#include <cstdint>
#include <vector>

namespace recurve {

// How long requests hold their slots, learnt from those that have ended.
class HoldTimeEstimator {
 public:
  // A sequence that held its slot for so long and generated so much of what it might have.
  void observe(double hold_seconds, int64_t generated, int64_t max_tokens);

  // What a sequence is expected to generate yet that may generate so much.
  double expected_tokens(int64_t may_generate) const {
    return share_ * static_cast<double>(may_generate);
  }
  double hold_seconds() const { return hold_; }  // of a slot, on average; 0: none known

 private:
  bool begun_ = false;
  double share_ = 1;  // of max_tokens that are generated
  double hold_ = 0;
};

// What stands between a request and its first token: a picture of the engine for one moment.
struct Ahead {
  int slots_missing = 0;              // that have to come free first; <= 0: there is room
  std::vector<double> releases = {};  // seconds until each slot in use comes free, in any order
  double hold_seconds = 0;            // that a slot is held, on average
  double prompt_tokens = 0;           // to be absorbed before its own
  double prompt_rate = 0;             // prompt tokens a second; 0: not known
};

// Seconds that others keep the request waiting. Slots come free as running sequences end, then in
// rounds of an average hold; prompts are absorbed meanwhile.
double expected_wait(Ahead ahead);

}  // namespace recurve
