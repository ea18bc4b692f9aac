#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace recurve {

// Why a prompt did not start from a cached prefix state, in the order of PrefixMiss; "hit": it did.
inline constexpr std::array kPrefixMisses = {"hit",   "off", "continues", "scored",
                                             "short", "new", "not_kept",  "on_disk"};

// Operations on --state-dir, in the order of Archive::Call.
inline constexpr std::array kStateDirCalls = {"commit", "spill", "read"};

// Slots by use.
struct SlotCounts {
  int64_t free = 0, running = 0, session_idle = 0;
};
// Sessions and stored responses by the location of their state, and moves of states to each
// location.
struct SessionTiers {
  int64_t in_slot = 0, in_host = 0, on_disk = 0, empty = 0;
  int64_t to_slot = 0, to_host = 0, to_disk = 0;
};
// Cached prefix states; some are both in host memory and on disk.
struct PrefixTiers {
  int64_t states = 0, bytes = 0, disk_states = 0, disk_bytes = 0;
  int64_t limit = 0;  // of bytes
};
// Pages of states that grow.
struct PageUse {
  int64_t total = 0, free = 0;
  int64_t running = 0;      // of running requests; pages that they share count for each
  int64_t preemptions = 0;  // since the start
};
struct StateDirUse {
  int64_t bytes = 0;               // of all files
  int64_t set_aside = 0;           // damaged files
  int64_t syncs = 0, written = 0;  // and bytes, since the start
};

// What the engine reports, on its thread. By default it is discarded; Metrics exports it.
class EngineMetrics {
 public:
  virtual ~EngineMetrics() = default;
  virtual void set_waiting(int64_t /*requests*/) {}
  // Of a short request that arrives now.
  virtual void set_expected_queue_seconds(double) {}
  virtual void add_prompt_tokens(int64_t) {}
  virtual void add_generated_tokens(int64_t) {}
  virtual void set_slots(const SlotCounts&) {}
  virtual void set_pages(const PageUse&) {}
  virtual void set_sessions(const SessionTiers&) {}
  virtual void set_session_host_bytes(int64_t) {}
  virtual void set_state_dir(const StateDirUse&) {}
  // An operation on --state-dir, by its index in kStateDirCalls, is done or has failed.
  virtual void observe_state_dir(int /*call*/, double /*seconds*/, bool /*failed*/) {}
  // A prompt has started. miss: an index in kPrefixMisses; the others: as in PrefixUse.
  virtual void add_prefix(int /*miss*/, int64_t /*tokens*/, int64_t /*replayed*/,
                          int64_t /*lost*/) {}
  virtual void set_prefixes(const PrefixTiers&) {}
  // A request without a session, or a new session, has started from the initial state of the name.
  virtual void add_initial_state(const std::string& /*name*/) {}
  // A request with the adapter of the name has started.
  virtual void add_adapter(const std::string& /*name*/) {}
  // Times, in seconds.
  virtual void observe_queue(double) {}
  virtual void observe_prefill(double) {}
  virtual void observe_decode(double) {}
  virtual void observe_step(double, int64_t /*rows*/) {}
};

}  // namespace recurve
