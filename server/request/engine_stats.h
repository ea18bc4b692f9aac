#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>

namespace recurve {

// Load of the engine at one moment: slots_free + running + slots_idle is slots.
struct EngineStats {
  int running = 0;  // sequences in a slot
  int slots = 0;    // all slots
  int slots_free = 0;
  int slots_idle = 0;  // held by idle sessions
  // Of states that grow: the memory for all of them, in pages. Pages of idle sessions are in use.
  int64_t pages = 0;
  int64_t pages_free = 0;
  int64_t preemptions = 0;  // sequences that gave up their slot for others' pages
  int sessions = 0;         // without those of stored responses
  int responses = 0;        // stored responses whose states are kept, each in an internal session
  int sessions_host = 0;    // of both, with their state in host memory
  int64_t host_bytes = 0;   // of session states and marks in host memory
  int sessions_disk = 0;    // of both, with their state on disk alone
  int64_t disk_bytes = 0;   // of all files of --state-dir
  int sessions_not_restored = 0;  // at the start, of the state folder
  int sessions_other_model = 0;   // whose states are of another model
  int64_t prefix_tokens = 0;      // from the prefix cache, since the start
  int64_t prefix_states = 0;      // in host memory
  int64_t prefix_bytes = 0;
  int64_t prefix_limit = 0;        // of prefix_bytes: what sessions have not reserved
  int64_t prefix_states_disk = 0;  // on disk; some are in memory too
  int64_t prefix_bytes_disk = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t steps = 0;
  double expected_queue_seconds = 0;  // of a short request that would arrive now

  // The sums; expected_queue_seconds is the longest.
  EngineStats& operator+=(const EngineStats& other) {
    running += other.running;
    slots += other.slots;
    slots_free += other.slots_free;
    slots_idle += other.slots_idle;
    pages += other.pages;
    pages_free += other.pages_free;
    preemptions += other.preemptions;
    sessions += other.sessions;
    responses += other.responses;
    sessions_host += other.sessions_host;
    host_bytes += other.host_bytes;
    sessions_disk += other.sessions_disk;
    disk_bytes += other.disk_bytes;
    sessions_not_restored += other.sessions_not_restored;
    sessions_other_model += other.sessions_other_model;
    prefix_tokens += other.prefix_tokens;
    prefix_states += other.prefix_states;
    prefix_bytes += other.prefix_bytes;
    prefix_limit += other.prefix_limit;
    prefix_states_disk += other.prefix_states_disk;
    prefix_bytes_disk += other.prefix_bytes_disk;
    prompt_tokens += other.prompt_tokens;
    generated_tokens += other.generated_tokens;
    steps += other.steps;
    expected_queue_seconds = std::max(expected_queue_seconds, other.expected_queue_seconds);
    return *this;
  }
};

// What the engine's thread published last. Any thread reads it, always all of one moment.
class PublishedStats {
 public:
  void publish(const EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  EngineStats read() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  EngineStats stats_;
};

}  // namespace recurve
