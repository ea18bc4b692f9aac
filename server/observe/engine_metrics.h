#pragma once
#include <cstdint>

namespace recurve {

// Why a prompt began with no state that another one had left, in the order of PrefixMiss; "hit": it
// began with one.
inline constexpr const char* kPrefixMisses[] = {"hit",   "off", "continues", "scored",
                                                "short", "new", "not_kept",  "on_disk"};

// What a server asks of its --state-dir, in the order of Archive::Call.
inline constexpr const char* kStateDirCalls[] = {"commit", "spill", "read"};

// Open sessions by where their states are, and how often states have come there.
struct SessionTiers {
  int64_t in_slot = 0, in_host = 0, on_disk = 0, empty = 0;
  int64_t to_slot = 0, to_host = 0, to_disk = 0;
};
// States that prompts have left, and what they take; some are both here and on the disk.
struct PrefixTiers {
  int64_t states = 0, bytes = 0, disk_states = 0, disk_bytes = 0;
};
struct StateDirUse {
  int64_t bytes = 0;      // of all files
  int64_t set_aside = 0;  // files, as they were damaged
  int64_t syncs = 0;      // since the start
};

// What the engine reports, on its own thread. By default nobody listens; metrics.h does.
class EngineMetrics {
 public:
  virtual ~EngineMetrics() = default;
  virtual void set_requests(int64_t /*running*/, int64_t /*waiting*/) {}
  // What a short request that came now would wait.
  virtual void set_expected_queue_seconds(double) {}
  virtual void add_prompt_tokens(int64_t) {}
  virtual void add_generated_tokens(int64_t) {}
  virtual void set_slots(int64_t /*free*/, int64_t /*running*/, int64_t /*session_idle*/) {}
  virtual void set_sessions(const SessionTiers&) {}
  virtual void set_session_host_bytes(int64_t) {}
  virtual void set_state_dir(const StateDirUse&) {}
  // A call of --state-dir, by its place in kStateDirCalls, is done, or has failed.
  virtual void observe_state_dir(int /*call*/, double /*seconds*/, bool /*failed*/) {}
  // A prompt began. miss: by the place of its reason in kPrefixMisses; the others: as in PrefixUse.
  virtual void add_prefix(int /*miss*/, int64_t /*tokens*/, int64_t /*replayed*/,
                          int64_t /*lost*/) {}
  virtual void set_prefixes(const PrefixTiers&) {}
  // Times, in seconds.
  virtual void observe_queue(double) {}
  virtual void observe_prefill(double) {}
  virtual void observe_decode(double) {}
  virtual void observe_step(double, int64_t /*rows*/) {}
};

}  // namespace recurve
