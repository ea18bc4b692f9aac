#pragma once
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_map>

namespace recurve {

// How much of something there may be: so many at once, and so many each second. One thread at a
// time.
class RateBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Rate {
    double at_once, per_second;
  };

  // Another one. False: that is too many, and does not count.
  bool spend(const Rate& rate, Time now);
  // Whether another one would be too many.
  bool is_spent(const Rate& rate, Time now) const { return used_at(rate, now) + 1 > rate.at_once; }
  // Whether all of it is there again.
  bool is_full(const Rate& rate, Time now) const { return used_at(rate, now) == 0; }

 private:
  double used_at(const Rate& rate, Time now) const;

  double used_ = 0;
  Time at_ = {};
};

// A budget of the same rate for each of many, by name; who has all of it again is forgotten.
// Thread-safe.
class RateBudgets {
 public:
  explicit RateBudgets(RateBudget::Rate rate) : rate_(rate) {}

  // As RateBudget's.
  bool spend(const std::string& name, RateBudget::Time now);
  bool is_spent(const std::string& name, RateBudget::Time now) const;
  // Of how many it knows.
  size_t size() const;

 private:
  void forget(RateBudget::Time now);

  const RateBudget::Rate rate_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, RateBudget> budgets_;
  RateBudget::Time forgot_ = {};
};

}  // namespace recurve
