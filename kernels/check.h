#pragma once
#include <cstdio>
#include <cstdlib>

// Ends the process when an invariant of ours does not hold. For bugs only: what a user can cause is
// reported as an error instead.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)
