#pragma once
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace recurve {

// Priorities of threads that must not delay the engine, whose steps use one thread per processor
// and wait for the slowest.
enum class ThreadPriority {
  kIdle,  // only idle processor time
  kLow,   // a tenth of a busy processor
};

// The longest time slice of such a thread.
inline constexpr uint64_t kLongestRun = 100'000;  // ns

// Sets the priority of a thread of this process, given by gettid(). Without privileges it cannot be
// raised again, also not for threads that this thread starts.
inline void set_priority(int thread, ThreadPriority priority) {
  const bool idle = priority == ThreadPriority::kIdle;
  const int nice = idle ? 19 : 10;
  // The struct of sched_setattr(2), which glibc has since 2.41.
  const struct {
    uint32_t size = 48, policy;
    uint64_t flags = 0;
    int32_t nice;
    uint32_t priority = 0;
    uint64_t runtime = kLongestRun;  // time slice, since Linux 6.12
    uint64_t deadline = 0, period = 0;
  } attributes{.policy = static_cast<uint32_t>(idle ? SCHED_IDLE : SCHED_BATCH), .nice = nice};
  if (syscall(SYS_sched_setattr, thread, &attributes, 0) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
}

}  // namespace recurve
