#include "server/request/tenant_meter.h"

#include <algorithm>

namespace recurve {
namespace {

double per_second(const Identity& caller) {
  return static_cast<double>(caller.limits.tokens_per_minute) / 60;
}

}  // namespace

bool TenantMeter::enter(const Identity& caller, const QueueBounds& bounds) {
  const TenantId share = caller.share(), group = caller.group();
  const int most = std::min(caller.limits.waiting, bounds.most);
  std::lock_guard lock(mutex_);
  const auto under_way = [this](TenantId id) {
    const auto account = accounts_.find(id);
    return account == accounts_.end() ? 0 : account->second.under_way;
  };
  const int own = under_way(share);
  if (own >= most || (bounds.first_only && own > 0)) return false;
  if (under_way(group) >= bounds.most_of_group) return false;
  ++accounts_[share].under_way;
  if (group != share) ++accounts_[group].under_way;
  return true;
}

// Addresses and connections come and go, and leave nothing behind.
void TenantMeter::leave(const Identity& caller) {
  std::lock_guard lock(mutex_);
  leave(caller.share());
  if (caller.group() != caller.share()) leave(caller.group());
}

void TenantMeter::leave(TenantId id) {
  const auto account = accounts_.find(id);
  if (--account->second.under_way == 0 && account->second.spent == 0) accounts_.erase(account);
}

TenantMeter::Account& TenantMeter::account_of(const Identity& caller, Clock::time_point now) {
  Account& account = accounts_[caller.share()];
  const double back = per_second(caller) * seconds_between(account.paid, now);
  account.spent = std::max(0.0, account.spent - back);
  account.paid = now;
  return account;
}

void TenantMeter::spend(const Identity& caller, int64_t tokens, Clock::time_point now) {
  if (caller.limits.tokens_per_minute == 0 || tokens == 0) return;
  std::lock_guard lock(mutex_);
  account_of(caller, now).spent += static_cast<double>(tokens);
}

double TenantMeter::seconds_to_wait(const Identity& caller, Clock::time_point now) {
  if (caller.limits.tokens_per_minute == 0) return 0;
  std::lock_guard lock(mutex_);
  const double ahead =
      account_of(caller, now).spent - static_cast<double>(caller.limits.tokens_per_minute);
  return ahead < 0 ? 0 : (ahead + 1) / per_second(caller);
}

}  // namespace recurve
