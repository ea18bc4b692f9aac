#pragma once
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace recurve {

// What works beside the engine. Steps are computed by as many threads as there are processors, and
// each waits for the slowest.
enum class ThreadPriority {
  kIdle,  // only where a processor has nothing else to do
  kLow,   // a tenth of a processor where it has
};

// That such a thread may hold one up for at a time, and then gives way.
inline constexpr uint64_t kLongestRun = 100'000;  // ns

// Of a thread of this process, by its number (gettid), from now on. One without rights can never
// have its own raised again, nor can one that it makes.
inline void set_priority(int thread, ThreadPriority priority) {
  const bool idle = priority == ThreadPriority::kIdle;
  const int nice = idle ? 19 : 10;
  // As the kernel's sched_setattr(2) has it; glibc 2.41 is the first that has it too.
  const struct {
    uint32_t size = 48, policy;
    uint64_t flags = 0;
    int32_t nice;
    uint32_t priority = 0;
    uint64_t runtime = kLongestRun;  // since Linux 6.12: in so small pieces
    uint64_t deadline = 0, period = 0;
  } attributes{.policy = static_cast<uint32_t>(idle ? SCHED_IDLE : SCHED_BATCH), .nice = nice};
  if (syscall(SYS_sched_setattr, thread, &attributes, 0) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
}

}  // namespace recurve
