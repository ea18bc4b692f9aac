#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace recurve {

// Thrown by work whose result is no longer needed, because its request was cancelled.
class WorkUnwanted : public std::exception {
 public:
  const char* what() const noexcept override { return "the work was cancelled"; }
};

// Thrown by work that fails because of its text. what() is for the client that sent the text.
class TextRefused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text has more tokens than WorkLimits::most_tokens. The total is not known: the work ends at
// the first token over the limit.
class TooManyTokens : public TextRefused {
 public:
  explicit TooManyTokens(size_t most)
      : TextRefused("the text has more than " + std::to_string(most) + " tokens") {}
};

// Limits of work on a text. The work checks them at least every few milliseconds. Can be copied;
// what it points to must outlive the work.
struct WorkLimits {
  const std::atomic<bool>* unwanted = nullptr;  // cancels the work once true; null: never
  size_t most_tokens = SIZE_MAX;                // most ids that a vector may hold

  // Throws WorkUnwanted if `unwanted` has become true.
  void check() const {
    if (unwanted != nullptr && unwanted->load(std::memory_order_relaxed)) throw WorkUnwanted();
  }
  // Also throws TooManyTokens if there are more `tokens` than allowed.
  void check(size_t tokens) const {
    check();
    if (tokens > most_tokens) throw TooManyTokens(most_tokens);
  }
};

}  // namespace recurve
