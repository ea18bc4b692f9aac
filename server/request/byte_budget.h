#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "server/identity/identity.h"

namespace recurve {

// Bounds what all calls together hold of something, and knows how much of it each tenant has: a
// part of it is for small calls alone, which large ones cannot fill. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : most_(most) {}

  // A part of the budget, given back when it is destroyed.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          tenant_(other.tenant_),
          bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(tenant_, other.tenant_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->give_back(tenant_, bytes_);
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class ByteBudget;
    Share(ByteBudget* budget, TenantId tenant, int64_t bytes)
        : budget_(budget), tenant_(tenant), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    TenantId tenant_ = 0;
    int64_t bytes_ = 0;
  };

  static constexpr int64_t kSmall = 64 << 10;  // most bytes of a small call

  // For a call of the tenant. Empty if it does not fit, or if there is no memory to write it down.
  // Something always fits where nothing is taken.
  Share take(int64_t bytes, TenantId tenant = kAnyone.tenant) {
    const int64_t most = bytes <= kSmall ? most_ : most_ - most_ / 8;
    const std::lock_guard lock(mutex_);
    if (used_ > 0 && used_ + bytes > most) return {};
    try {
      used_by_[tenant] += bytes;
    } catch (const std::bad_alloc&) {
      return {};
    }
    used_ += bytes;
    return {this, tenant, bytes};
  }

  int64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  // What the calls of one tenant have.
  int64_t used(TenantId tenant) const {
    const std::lock_guard lock(mutex_);
    const auto found = used_by_.find(tenant);
    return found == used_by_.end() ? 0 : found->second;
  }

 private:
  void give_back(TenantId tenant, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    const auto found = used_by_.find(tenant);
    if (found != used_by_.end() && (found->second -= bytes) == 0) used_by_.erase(found);
  }

  const int64_t most_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
  std::map<TenantId, int64_t> used_by_;  // of those that have something
};

}  // namespace recurve
