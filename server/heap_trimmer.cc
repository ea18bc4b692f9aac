#include "server/heap_trimmer.h"

#include <malloc.h>

#include <algorithm>

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;

// Free in the heap, and not worth a look.
constexpr size_t kSlack = size_t{16} << 20;
// From this size on memory is mapped and goes back at once; and what each thread's heap keeps at
// its end, which no trimming reaches.
constexpr int kMapFrom = 1 << 20, kKeptAtTheEnd = 2 << 20;
// Others wait meanwhile who want memory: of the time, trimming takes no more than one part in so
// many.
constexpr int kOfTheTime = 1000;

}  // namespace

HeapTrimmer::HeapTrimmer(std::chrono::milliseconds period) : period_(period) {
  mallopt(M_MMAP_THRESHOLD, kMapFrom);
  mallopt(M_TRIM_THRESHOLD, kKeptAtTheEnd);
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
    pause = std::max<Clock::duration>(period_, kOfTheTime * (Clock::now() - began));
  }
}

}  // namespace recurve
