#pragma once

#include <cstddef>

namespace recurve::testing {

// Whether a sanitizer watches the program, which takes time and memory of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// How many, or how long: of what is only more of the same, a sanitizer, under which everything
// takes some ten times as long, is shown less than the program as it is shipped.
constexpr size_t amount(size_t as_shipped, size_t sanitized) {
  return kSanitized ? sanitized : as_shipped;
}

}  // namespace recurve::testing
