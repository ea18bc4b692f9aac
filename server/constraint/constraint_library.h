#pragma once
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// The bytes that each id adds to a text, in the order of ids; none for control tokens.
using TokenTexts = std::vector<std::string>;

// That the calling thread has computed, or the one of this clock (pthread_getcpuclockid).
inline double thread_seconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// When a compilation is given up, or rests.
struct CompileBounds {
  double most_seconds = 20;  // that the thread has computed
  // Called now and then, with the seconds that the thread has computed so far: may take its time,
  // and throws CompileUnwanted where nobody wants it any more. Empty: all do.
  std::function<void(double seconds)> look = {};
};
// It has been given up, as it was not wanted any more.
class CompileUnwanted {};

// What compiles constraints.
class ConstraintLibrary {
 public:
  virtual ~ConstraintLibrary() = default;
  // May take as long as the bounds let it. Throws ConstraintRefused and CompileUnwanted. Any
  // thread.
  virtual std::shared_ptr<const Constraint> compile(const ConstraintText& text,
                                                    const CompileBounds& bounds) = 0;
  // Of memory that kept masks take now. Any thread.
  virtual size_t mask_bytes() const { return 0; }
};

// Of memory, for masks of places where answers were; of 131,072 ids that is a thousand.
inline constexpr size_t kMaskBytes = size_t{16} << 20;

// Where this build has no library for it, one that refuses everything. May take long for a large
// vocabulary. Its constraints keep masks in so many bytes; the masks are the same without.
std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens,
                                                           size_t mask_bytes = kMaskBytes);

// Whether it has one.
bool has_constraint_library();

}  // namespace recurve
