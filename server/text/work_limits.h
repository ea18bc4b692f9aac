#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace recurve {

// Thrown by work that is given up because nobody wants its result any more.
class WorkUnwanted : public std::exception {
 public:
  const char* what() const noexcept override { return "the work is not wanted any more"; }
};

// Thrown by work on a text that cannot be had, for a reason that lies in the text; what() is for
// the client who sent it.
class TextRefused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text has more tokens than WorkLimits::most_tokens. How many it has altogether is not known:
// the work ends with the first that is too many.
class TooManyTokens : public TextRefused {
 public:
  explicit TooManyTokens(size_t most)
      : TextRefused("the text has more than " + std::to_string(most) + " tokens") {}
};

// What bounds work on a text. The work looks at it now and then, a few milliseconds apart at most
// whatever the text. Copied freely; what it points to outlives the work.
struct WorkLimits {
  const std::atomic<bool>* unwanted = nullptr;  // once true, the work ends; null: never
  size_t most_tokens = SIZE_MAX;                // ids that a vector may be filled up to

  // Throws WorkUnwanted if `unwanted` has become true.
  void check() const {
    if (unwanted != nullptr && unwanted->load(std::memory_order_relaxed)) throw WorkUnwanted();
  }
  // The same, and throws TooManyTokens if `tokens` are too many.
  void check(size_t tokens) const {
    check();
    if (tokens > most_tokens) throw TooManyTokens(most_tokens);
  }
};

}  // namespace recurve
