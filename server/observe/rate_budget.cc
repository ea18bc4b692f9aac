#include "server/observe/rate_budget.h"

#include <algorithm>

namespace recurve {

double RateBudget::used_at(const Rate& rate, Time now) const {
  const std::chrono::duration<double> passed = now - at_;
  return std::max(0.0, used_ - passed.count() * rate.per_second);
}

bool RateBudget::spend(const Rate& rate, Time now) {
  used_ = used_at(rate, now);
  at_ = now;
  if (used_ + 1 > rate.at_once) return false;
  ++used_;
  return true;
}

bool RateBudgets::spend(const std::string& name, RateBudget::Time now) {
  std::lock_guard lock(mutex_);
  remove_full(now);
  return budgets_[name].spend(rate_, now);
}

bool RateBudgets::is_spent(const std::string& name, RateBudget::Time now) const {
  std::lock_guard lock(mutex_);
  const auto found = budgets_.find(name);
  return found != budgets_.end() && found->second.is_spent(rate_, now);
}

size_t RateBudgets::size() const {
  std::lock_guard lock(mutex_);
  return budgets_.size();
}

void RateBudgets::remove_full(RateBudget::Time now) {
  constexpr std::chrono::seconds kInterval(1);
  if (now - cleaned_ < kInterval) return;
  cleaned_ = now;
  std::erase_if(budgets_, [&](const auto& one) { return one.second.is_full(rate_, now); });
}

}  // namespace recurve
