#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace recurve::cpu {

// Threads that share the loops of the kernels. The caller of parallel_for works too, so `threads`
// counts it, and one thread means plain calls. Workers spin for some tens of microseconds between
// loops, as those of a step follow each other closely, and sleep after that. A worker that shares
// its core with others leaves it between two indices, before the system takes it away within one:
// all would wait for that index as long as the others run, where else they do the rest meanwhile.
class ThreadPool {
 public:
  // Throws std::system_error if a thread cannot start.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static int default_threads();  // one a core this process may use
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(index) once for each index in [0, count), in any order and on any thread, and
  // returns when all are done. Each thread goes through a part of the indices in their order, and
  // then takes what is left of the others' from their ends: so what stands one after the other in
  // memory is read so. There are fewer than 2^32 indices. The bodies write to separate places
  // and do not throw. Called from a second thread at the same time, or from inside a body, it runs
  // on that thread alone.
  template <typename Body>
  void parallel_for(int64_t count, const Body& body) {
    if (count <= 1 || workers_.empty() || busy_.test_and_set(std::memory_order_acquire)) {
      for (int64_t index = 0; index < count; ++index) body(index);
      return;
    }
    run(count, &body,
        [](const void* context, int64_t index) { (*static_cast<const Body*>(context))(index); });
    busy_.clear(std::memory_order_release);
  }

 private:
  using Function = void (*)(const void* context, int64_t index);

  void run(int64_t count, const void* context, Function function);
  void stop();
  template <typename Leave>
  void take_indices(size_t thread, Leave leave);
  void work(size_t thread);
  uint32_t wait_for_loop(uint32_t last);

  // One word says everything: how many workers are inside the loop, whether it may be entered,
  // whether to end, and the number of the loop. A worker enters by adding itself while the loop is
  // open; the caller closes it when no index is left and waits only for those who are inside. A
  // worker that wakes late finds it closed, and no thread has waited for it.
  static constexpr uint32_t kInside = 0x3ff;
  static constexpr uint32_t kOpen = 0x400;
  static constexpr uint32_t kStop = 0x800;
  static constexpr uint32_t kLoop = 0x1000;
  alignas(64) std::atomic<uint32_t> state_ = 0;

  // The indices [begin, end) of the loop that are left of a thread's part, in one word: begin in
  // its lower half. The thread takes the first, others the last.
  struct alignas(64) Part {
    std::atomic<uint64_t> left = 0;

    std::optional<uint32_t> take_first();
    std::optional<uint32_t> take_last();
  };
  std::vector<Part> parts_;  // the caller's, then the workers'

  // The loop; written while no worker is inside.
  const void* context_ = nullptr;
  Function function_ = nullptr;

  std::atomic_flag busy_;
  std::vector<std::thread> workers_;
};

}  // namespace recurve::cpu
