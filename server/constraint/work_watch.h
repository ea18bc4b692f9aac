#pragma once
#include <optional>

#include "server/constraint/constraint_library.h"
#include "server/constraint/thread_memory.h"

namespace recurve {

// It takes too long or too much memory, however it is read.
class WorkRefused : public ConstraintRefused {
 public:
  using ConstraintRefused::ConstraintRefused;
};

// What the calling thread does for a constraint while one lives is within these bounds: whatever
// may take long, or much memory, calls look() on its way.
class WorkWatch {
 public:
  // `remedy`: what takes so much, and what to write instead. `most_bytes`: of memory; 0: any.
  WorkWatch(const CompileBounds& bounds, const char* remedy, size_t most_bytes = 0);
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

  // Of the calling thread, before it allocates so many bytes more. Throws WorkRefused, and what the
  // bounds' own look() throws.
  static void look(size_t more = 0);

 private:
  void look_at_time();
  void look_at_memory(size_t more) const;

  static thread_local WorkWatch* current;
  const CompileBounds& bounds_;
  const char* const remedy_;
  const double began_;
  const size_t most_bytes_;
  std::optional<ThreadMemory> memory_ = {};
  int looks_ = 0;
};

}  // namespace recurve
