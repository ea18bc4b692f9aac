#include "server/startup/heap_trimmer.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "server/request/clock.h"

namespace recurve {
namespace {

// Free in the heap, and not worth a look.
constexpr size_t kSlack = size_t{16} << 20;
// From this size on memory is mapped and goes back at once; and what each thread's heap keeps at
// its end, which no trimming reaches.
constexpr int kMapFrom = 1 << 20, kKeptAtTheEnd = 2 << 20;
constexpr int kFewHeaps = 2;
// Others wait meanwhile who want memory: trimming takes one part in so many of the time, unless
// that would be too rare.
constexpr int kOfTheTime = 1000;
constexpr Clock::duration kRarest = std::chrono::seconds(20);

}  // namespace

HeapTrimmer::HeapTrimmer(std::chrono::milliseconds period) : period_(period) {
  mallopt(M_MMAP_THRESHOLD, kMapFrom);
  mallopt(M_TRIM_THRESHOLD, kKeptAtTheEnd);
  // Each thread's heap takes 64 MB of addresses, whatever is in it.
  rlimit addresses{};
  const bool limited = getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY;
  if (limited) mallopt(M_ARENA_MAX, kFewHeaps);
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
    const Clock::duration fair = kOfTheTime * (Clock::now() - began);
    pause = std::max<Clock::duration>(period_, std::min(fair, kRarest));
  }
}

}  // namespace recurve
