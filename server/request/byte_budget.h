#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

namespace recurve {

// Bounds what all calls together hold of something: a part of it is for small calls alone, which
// large ones cannot fill. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : most_(most) {}

  // A part of the budget, given back when it is destroyed.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->used_ -= bytes_;
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class ByteBudget;
    Share(ByteBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  static constexpr int64_t kSmall = 64 << 10;  // most bytes of a small call

  // Empty if it does not fit. Something always fits where nothing is taken.
  Share take(int64_t bytes) {
    const int64_t most = bytes <= kSmall ? most_ : most_ - most_ / 8;
    int64_t used = used_.load();
    do {
      if (used > 0 && used + bytes > most) return {};
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return {this, bytes};
  }
  int64_t used() const { return used_; }

 private:
  const int64_t most_;
  std::atomic<int64_t> used_{0};
};

}  // namespace recurve
