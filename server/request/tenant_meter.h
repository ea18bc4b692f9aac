#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "server/identity/identity.h"
#include "server/request/clock.h"

namespace recurve {

// What tenants have under way and have spent, against what they may have; where there are no keys,
// addresses of the network stand for them (Identity::share()). Thread-safe.
class TenantMeter {
 public:
  // A request of the tenant begins; false, and it does not, where it has as many as it may, or
  // `most`.
  bool enter(const Identity& caller, int most = TenantLimits::kNone);
  void leave(const Identity& caller);

  // Tokens that were absorbed or generated. What is spent is paid back at the rate of
  // tokens_per_minute, and a minute's worth may be spent ahead.
  void spend(const Identity& caller, int64_t tokens, Clock::time_point now);
  // Seconds until the tenant may begin another request; 0: now.
  double seconds_to_wait(const Identity& caller, Clock::time_point now);

 private:
  struct Account {
    int under_way = 0;
    double spent = 0;  // tokens, and not paid back
    Clock::time_point paid = {};
  };
  Account& account_of(const Identity& caller, Clock::time_point now);

  std::mutex mutex_;
  std::map<TenantId, Account>
      accounts_;  // of all that have something under way or not paid back, and of others
};

}  // namespace recurve
