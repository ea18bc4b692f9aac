#include "server/startup/heap_trimmer.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "server/request/clock.h"

namespace recurve {
namespace {

// Free bytes of the heap that are not worth trimming: they stay resident, next to those at the ends
// of heaps.
constexpr size_t kSlack = size_t{2} << 20;
// Allocations from this size on are mapped, and returned when they are freed.
constexpr int kMapThreshold = 1 << 20;
// Free bytes at the end of each thread's heap, which malloc_trim() does not reach.
constexpr int kTrimThreshold = 2 << 20;
constexpr int kMaxHeaps = 2;  // with a limit of addresses
// Other threads wait for memory during a trim: it takes at most 1 / kTimeShare of the time, but is
// not delayed longer than kMaxPause.
constexpr int kTimeShare = 1000;
constexpr Clock::duration kMaxPause = std::chrono::seconds(20);

}  // namespace

HeapTrimmer::HeapTrimmer(std::chrono::milliseconds period) : period_(period) {
  mallopt(M_MMAP_THRESHOLD, kMapThreshold);
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  // The heap of each thread takes 64 MB of addresses, even if it is empty.
  rlimit addresses{};
  const bool limited = getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY;
  if (limited) mallopt(M_ARENA_MAX, kMaxHeaps);
  thread_ = std::thread([this] { work(); });
}

HeapTrimmer::~HeapTrimmer() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void HeapTrimmer::work() {
  Clock::duration pause = period_;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [this] { return ending_; })) {
    const Clock::time_point began = Clock::now();
    if (mallinfo2().fordblks >= kSlack) malloc_trim(0);
    const Clock::duration fair = kTimeShare * (Clock::now() - began);
    pause = std::max<Clock::duration>(period_, std::min(fair, kMaxPause));
  }
}

}  // namespace recurve
