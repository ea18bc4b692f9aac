#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// [id]: the bytes that an id adds to a text; empty for control tokens.
using TokenTexts = std::vector<std::string>;

// Processor time of the calling thread, or of the thread of this clock (pthread_getcpuclockid).
inline double thread_seconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Most memory of a compilation, in addition to the size of the text.
inline constexpr size_t kMostCompileBytes = size_t{14} << 20;

// Limits of one compilation.
struct CompileBounds {
  double most_seconds = 20;  // of processor time
  // Called regularly with the processor time so far. It may block, and throws CompileUnwanted to
  // cancel the compilation. May be empty.
  std::function<void(double seconds)> on_progress = {};
  uint64_t client = 0;  // whose share of the caches is used
};
// Thrown by a compilation that is cancelled.
class CompileUnwanted {};

// Bytes of memory of the library's caches.
struct CacheBytes {
  size_t masks = size_t{16} << 20;  // masks of answers; a thousand for 131,072 ids
  size_t rules = size_t{32} << 20;  // masks of rules, for later compilations
};

// Compiles constraints for one vocabulary.
class ConstraintLibrary {
 public:
  virtual ~ConstraintLibrary() = default;
  // Can take as long as the bounds allow. Throws ConstraintRefused and CompileUnwanted. Any thread.
  virtual std::shared_ptr<const Constraint> compile(const ConstraintText& text,
                                                    const CompileBounds& bounds) = 0;
  // Current memory of the caches. Any thread.
  virtual CacheBytes cached_bytes() const { return {.masks = 0, .rules = 0}; }
};

// In a build without xgrammar, a library that refuses every constraint. Can take long for a large
// vocabulary. `most` limits the caches, which do not affect masks.
std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens,
                                                           CacheBytes most = {});

// Whether this build has xgrammar.
bool has_constraint_library();

}  // namespace recurve
