#pragma once
#include <cstdint>

namespace recurve {

// Why a prompt began with no state that another one had left, in the order of PrefixMiss; "hit": it
// began with one.
inline constexpr const char* kPrefixMisses[] = {"hit",   "off", "continues", "scored",
                                                "short", "new", "not_kept"};

// What the engine reports, on its own thread. By default nobody listens; metrics.h does.
class EngineMetrics {
 public:
  virtual ~EngineMetrics() = default;
  virtual void set_requests(int64_t /*running*/, int64_t /*waiting*/) {}
  virtual void add_prompt_tokens(int64_t) {}
  virtual void add_generated_tokens(int64_t) {}
  virtual void set_slots(int64_t /*free*/, int64_t /*running*/, int64_t /*session_idle*/) {}
  virtual void set_sessions(int64_t /*in_slot*/, int64_t /*in_host*/, int64_t /*empty*/) {}
  virtual void set_session_host_bytes(int64_t) {}
  virtual void set_session_disk(int64_t /*sessions*/, int64_t /*bytes*/) {}
  // A prompt began. miss: by the place of its reason in kPrefixMisses; tokens, lost: as in
  // PrefixUse.
  virtual void add_prefix(int /*miss*/, int64_t /*tokens*/, int64_t /*lost*/) {}
  virtual void set_prefixes(int64_t /*states*/, int64_t /*bytes*/) {}
  // Times, in seconds.
  virtual void observe_queue(double) {}
  virtual void observe_prefill(double) {}
  virtual void observe_decode(double) {}
  virtual void observe_step(double, int64_t /*rows*/) {}
};

}  // namespace recurve
