#pragma once

#include <cstddef>

namespace recurve::testing {

// Whether a sanitizer watches the program (CMake's RECURVE_SANITIZE), which takes additional time
// and memory.
#ifdef RECURVE_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Whether this is a quick build (CMake's RECURVE_QUICK), whose tests are to be done soon.
#ifdef RECURVE_QUICK
constexpr bool kQuick = true;
#else
constexpr bool kQuick = false;
#endif

// How many, or how long: of repetitive cases quick builds try fewer than
// `tests/run.sh --all` tries of the program as it is shipped, and so do sanitizers, under which
// everything takes some ten times as long. For tests that `--all` also runs as shipped: COMPUTES in
// tests/CMakeLists.txt.
constexpr size_t amount(size_t as_shipped, size_t less) {
  return kSanitized || kQuick ? less : as_shipped;
}

}  // namespace recurve::testing
