#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "server/identity/identity.h"
#include "server/request/clock.h"

namespace recurve {

// What one share, and one group of shares, may have under way.
struct QueueBounds {
  int most = TenantLimits::kNone, most_of_group = TenantLimits::kNone;
  bool first_only = false;  // the rest is for shares that have nothing under way
};

// What tenants have under way and have spent, against what they may have; where there are no keys,
// connections stand for them, and those of one address count together too (Identity::share(),
// group()). Thread-safe.
class TenantMeter {
 public:
  // A request begins; false, and it does not, where its share or group has as many as it may.
  bool enter(const Identity& caller, const QueueBounds& bounds = {});
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
  void leave(TenantId id);

  std::mutex mutex_;
  // Of all shares and groups that have something under way or not paid back, and of others.
  std::map<TenantId, Account> accounts_;
};

}  // namespace recurve
