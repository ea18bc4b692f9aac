#pragma once
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_map>

namespace recurve {

// A rate limit: so many events at once, and so many per second on average. One thread at a time.
class RateBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Rate {
    double at_once, per_second;
  };

  // Counts one event. False: it exceeds the rate, and is not counted.
  bool spend(const Rate& rate, Time now);
  // Whether another event would exceed the rate.
  bool is_spent(const Rate& rate, Time now) const { return used_at(rate, now) + 1 > rate.at_once; }
  // Whether no earlier event counts any more.
  bool is_full(const Rate& rate, Time now) const { return used_at(rate, now) == 0; }

 private:
  double used_at(const Rate& rate, Time now) const;

  double used_ = 0;
  Time at_ = {};
};

// Budgets of one rate by name. Full ones are removed. Thread-safe.
class RateBudgets {
 public:
  explicit RateBudgets(RateBudget::Rate rate) : rate_(rate) {}

  // As RateBudget.
  bool spend(const std::string& name, RateBudget::Time now);
  bool is_spent(const std::string& name, RateBudget::Time now) const;
  // The number of budgets that are not full.
  size_t size() const;

 private:
  void remove_full(RateBudget::Time now);

  const RateBudget::Rate rate_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, RateBudget> budgets_;
  RateBudget::Time cleaned_ = {};
};

}  // namespace recurve
