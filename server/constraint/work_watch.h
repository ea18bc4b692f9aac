#pragma once
#include <optional>

#include "server/constraint/constraint_library.h"
#include "server/constraint/thread_memory.h"

namespace recurve {

// A constraint whose work exceeds the limits of time or memory.
class WorkRefused : public ConstraintRefused {
 public:
  using ConstraintRefused::ConstraintRefused;
};

// Limits the work of the calling thread for a constraint while it exists: code that may take long,
// or much memory, calls check() regularly.
class WorkWatch {
 public:
  // `remedy`: the end of the message, which tells what takes so much and what to write instead.
  // `most_bytes`: of memory; 0: no limit.
  WorkWatch(const CompileBounds& bounds, const char* remedy, size_t most_bytes = 0);
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

  // Checks the work of the calling thread, before it allocates `more` bytes. Throws WorkRefused,
  // and what bounds.on_progress() throws.
  static void check(size_t more = 0);

 private:
  void check_time();
  void check_memory(size_t more) const;

  static thread_local WorkWatch* current;
  const CompileBounds& bounds_;
  const char* const remedy_;
  const double began_;
  const size_t most_bytes_;
  std::optional<ThreadMemory> memory_ = {};
  int checks_ = 0;
};

}  // namespace recurve
