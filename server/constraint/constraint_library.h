#pragma once
#include <cstdint>
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

// Of memory, in addition to the bytes of its text: a constraint whose compilation takes more is
// refused.
inline constexpr size_t kMostCompileBytes = size_t{14} << 20;

// When a compilation is given up, or rests.
struct CompileBounds {
  double most_seconds = 20;  // that the thread has computed
  // Called now and then, with the seconds that the thread has computed so far: may take its time,
  // and throws CompileUnwanted where nobody wants it any more. Empty: all do.
  std::function<void(double seconds)> look = {};
  uint64_t client = 0;  // to whose share belongs what is kept of it
};
// It has been given up, as it was not wanted any more.
class CompileUnwanted {};

// Of memory, for what has been worked out and may be wanted again.
struct KeptBytes {
  size_t masks = size_t{16} << 20;  // of places where answers were; of 131,072 ids a thousand
  size_t rules = size_t{32} << 20;  // of constraints: what of a rule does not depend on its place
};

// What compiles constraints.
class ConstraintLibrary {
 public:
  virtual ~ConstraintLibrary() = default;
  // May take as long as the bounds let it. Throws ConstraintRefused and CompileUnwanted. Any
  // thread.
  virtual std::shared_ptr<const Constraint> compile(const ConstraintText& text,
                                                    const CompileBounds& bounds) = 0;
  // What is kept takes now. Any thread.
  virtual KeptBytes kept_bytes() const { return {.masks = 0, .rules = 0}; }
};

// Where this build has no library for it, one that refuses everything. May take long for a large
// vocabulary. What it keeps takes so many bytes at most; masks are the same without.
std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens,
                                                           KeptBytes most = {});

// Whether it has one.
bool has_constraint_library();

}  // namespace recurve
