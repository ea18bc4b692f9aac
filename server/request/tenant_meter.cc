#include "server/request/tenant_meter.h"

#include <algorithm>

namespace recurve {
namespace {

double per_second(const Identity& caller) {
  return static_cast<double>(caller.limits.tokens_per_minute) / 60;
}

}  // namespace

bool TenantMeter::enter(const Identity& caller, int most) {
  std::lock_guard lock(mutex_);
  int& under_way = accounts_[caller.share()].under_way;
  if (under_way >= std::min(caller.limits.waiting, most)) return false;
  ++under_way;
  return true;
}

// Addresses come and go, and leave nothing behind.
void TenantMeter::leave(const Identity& caller) {
  std::lock_guard lock(mutex_);
  const auto account = accounts_.find(caller.share());
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
