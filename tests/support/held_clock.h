#pragma once
#include "server/request/clock.h"

namespace recurve::testing {

// While it lives, time passes as Clock::pass() says, and only so.
class HeldClock {
 public:
  HeldClock() { Clock::hold(); }
  ~HeldClock() { Clock::release(); }
  HeldClock(const HeldClock&) = delete;
  HeldClock& operator=(const HeldClock&) = delete;
};

}  // namespace recurve::testing
