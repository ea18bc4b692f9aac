#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "server/identity/identity.h"

namespace recurve {

// A budget of bytes for all calls. An eighth is reserved for small calls. The large calls of a
// share, and of a group of shares (Identity::share()), may hold at most three times the remaining
// bytes. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : most_(most) {}

  // A reserved part of the budget, released by the destructor.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          share_(other.share_),
          bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(share_, other.share_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->give_back(share_, bytes_);
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class ByteBudget;
    Share(ByteBudget* budget, TenantId share, int64_t bytes)
        : budget_(budget), share_(share), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    TenantId share_ = 0;
    int64_t bytes_ = 0;
  };

  static constexpr int64_t kSmall = 64 << 10;  // most bytes of a small call

  // Empty if it does not fit, or on a failed allocation. Any size fits if nothing else is reserved.
  Share take(int64_t bytes, TenantId share) {
    const std::lock_guard lock(mutex_);
    if (!fits(bytes, share)) return {};
    try {
      used_by_[share] += bytes;
    } catch (const std::bad_alloc&) {
      return {};
    }
    used_ += bytes;
    return {this, share, bytes};
  }

  int64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  // Of one share.
  int64_t used(TenantId share) const {
    const std::lock_guard lock(mutex_);
    return used_between(share, share);
  }

 private:
  bool fits(int64_t bytes, TenantId share) const {
    if (used_ == 0) return true;
    if (bytes <= kSmall) return used_ + bytes <= most_;
    if (used_ + bytes > most_ - most_ / 8) return false;
    const auto may_have = [&](int64_t has) {
      const int64_t left = most_ - used_ - bytes;
      return has == 0 || (has + bytes + kTimesWhatIsLeft - 1) / kTimesWhatIsLeft <= left;
    };
    return may_have(used_between(share, share)) &&
           may_have(used_between(group_of(share), last_of_group(share)));
  }
  int64_t used_between(TenantId first, TenantId last) const {
    int64_t used = 0;
    for (auto it = used_by_.lower_bound(first); it != used_by_.end() && it->first <= last; ++it) {
      used += it->second;
    }
    return used;
  }
  void give_back(TenantId share, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    const auto found = used_by_.find(share);
    if (found != used_by_.end() && (found->second -= bytes) == 0) used_by_.erase(found);
  }

  static constexpr int64_t kTimesWhatIsLeft = 3;  // bound of a share
  const int64_t most_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
  std::map<TenantId, int64_t> used_by_;  // of shares with reserved bytes
};

}  // namespace recurve
