#pragma once
#include <atomic>
#include <cstdint>

namespace recurve {

// Load of the engine: written by its thread, read by any.
struct EngineStats {
  std::atomic<int> running{0};  // sequences in a slot
  std::atomic<int> slots{0};    // all slots
  std::atomic<int> slots_free{0};
  std::atomic<int> slots_idle{0};  // held by idle sessions
  // Of states that grow: the memory for all of them, in pages. Pages of idle sessions are in use.
  std::atomic<int64_t> pages{0};
  std::atomic<int64_t> pages_free{0};
  std::atomic<int64_t> preemptions{0};  // sequences that gave up their slot for others' pages
  std::atomic<int> sessions{0};
  std::atomic<int> sessions_host{0};          // of these, with their state in host memory
  std::atomic<int64_t> host_bytes{0};         // of session states and marks in host memory
  std::atomic<int> sessions_disk{0};          // with their state on disk alone
  std::atomic<int64_t> disk_bytes{0};         // of all files of --state-dir
  std::atomic<int> sessions_not_restored{0};  // at the start, of the state folder
  std::atomic<int> sessions_other_model{0};   // whose states are of another model
  std::atomic<int64_t> prefix_tokens{0};      // from the prefix cache, since the start
  std::atomic<int64_t> prefix_states{0};      // in host memory
  std::atomic<int64_t> prefix_bytes{0};
  std::atomic<int64_t> prefix_states_disk{0};  // on disk; some are in memory too
  std::atomic<int64_t> prefix_bytes_disk{0};
  std::atomic<int64_t> prompt_tokens{0};
  std::atomic<int64_t> generated_tokens{0};
  std::atomic<int64_t> steps{0};
  std::atomic<double> expected_queue_seconds{0};  // of a short request that would arrive now
};

}  // namespace recurve
