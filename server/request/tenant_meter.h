#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "server/identity/identity.h"
#include "server/request/clock.h"

namespace recurve {

// Bounds of the active requests of a share and of a group of shares.
struct QueueBounds {
  int most = TenantLimits::kNone, most_of_group = TenantLimits::kNone;
  bool first_only = false;  // only for shares without an active request
};

// Counts the active requests and tokens of tenants against their limits. Without keys, a connection
// counts as a tenant, and the connections of an address form a group (Identity::share(), group()).
// Thread-safe.
class TenantMeter {
 public:
  // Counts a request; false, without effect, if its share or group is at its bound.
  bool enter(const Identity& caller, const QueueBounds& bounds = {});
  void leave(const Identity& caller);

  // Counts absorbed and generated tokens. A token bucket: refilled at tokens_per_minute, with a
  // capacity of one minute.
  void spend(const Identity& caller, int64_t tokens, Clock::time_point now);
  // Seconds until the tenant may start another request; 0: now.
  double seconds_to_wait(const Identity& caller, Clock::time_point now);

 private:
  struct Account {
    int under_way = 0;
    double spent = 0;  // tokens, not refilled yet
    Clock::time_point paid = {};
  };
  Account& account_of(const Identity& caller, Clock::time_point now);
  void leave(TenantId id);

  std::mutex mutex_;
  // Of all shares and groups with active requests or spent tokens, and of recent ones.
  std::map<TenantId, Account> accounts_;
};

}  // namespace recurve
