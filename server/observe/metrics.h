#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/observe/engine_metrics.h"
#include "server/request/end_reason.h"

namespace recurve {

// Of constraints that answers had to keep to; the counts since the start.
struct ConstraintUse {
  int64_t compiled = 0, from_cache = 0, refused = 0;
  int64_t given_up = 0;     // under way, and nobody waited any more
  int64_t turned_away = 0;  // too many waited
  int64_t waiting = 0;      // now, what is under way included
  int64_t cached_bytes = 0;
};

// The server's counters for Prometheus. Every series exists from the start (a rate over a series
// that appears late misses its first event), and an event is one atomic addition or one histogram
// under its own mutex: no look-up, no string. Thread-safe. deploy/README.md's table lists them all.
//
// The header names no Prometheus type, so that who reports need not link it.
class Metrics final : public EngineMetrics {
 public:
  // Why a connection was closed as it came.
  enum class Refusal {
    kTooMany,           // of all together
    kTooManyOfAddress,  // of the peer's address
    kNoFile,            // the process has no descriptor left; it waits for one
  };
  static constexpr int kRefusals = 3;

  // What became of the spans of traced calls.
  enum class Spans {
    kSent,     // to the collector
    kDropped,  // it did not take them, or too many waited
  };
  // What is counted for each tenant.
  enum class Of { kRequests, kRefused, kPromptTokens, kGeneratedTokens };
  static constexpr int kOfTenant = 4;
  // Tenants that have series of their own; those that come after them are "other" together.
  static constexpr size_t kMostTenants = 100;

  Metrics();
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Requests.
  void request_received();  // recurve_requests_total
  // recurve_requests_finished_total{reason}, where the reason has a label
  void request_finished(EndReason);
  void request_failed(Code);  // recurve_errors_total{code}
  // recurve_requests_{running,waiting}
  void set_requests(int64_t running, int64_t waiting) override;
  void set_expected_queue_seconds(double seconds) override;  // recurve_expected_queue_seconds

  // Connections. recurve_connections, recurve_connections_refused_total{reason}.
  void set_connections(int64_t n);
  void connection_refused(Refusal);
  // recurve_floods_total{of}: connections of HTTP/2 that were ended for it; a FrameCounter::Flood.
  void flood_ended(int of);

  // Tenants. recurve_tenant_{requests,refused,prompt_tokens,generated_tokens}_total{tenant}: an
  // exception to what is said above, as names come late, and under a mutex.
  void count_for(std::string_view tenant, Of, int64_t n = 1);

  // Tokens. recurve_prompt_tokens_total, recurve_generated_tokens_total; negative n is ignored.
  void add_prompt_tokens(int64_t n) override;
  void add_generated_tokens(int64_t n) override;

  // Slots and sessions. recurve_slots{tier}, recurve_sessions{tier}, recurve_session_host_bytes.
  void set_slots(int64_t free, int64_t running, int64_t session_idle) override;
  void set_sessions(const SessionTiers& tiers) override;  // recurve_session_moves_total{to} too
  void set_session_host_bytes(int64_t bytes) override;
  // recurve_state_dir_bytes, recurve_state_dir_set_aside, recurve_state_dir_syncs_total
  void set_state_dir(const StateDirUse& use) override;
  // recurve_state_dir_seconds{call}, recurve_state_dir_failures_total{call}
  void observe_state_dir(int call, double seconds, bool failed) override;

  // recurve_prefix_prompts_total{begin}, recurve_prefix_tokens_total{of},
  // recurve_prefix_states, recurve_prefix_bytes, recurve_prefix_states_on_disk,
  // recurve_prefix_bytes_on_disk
  void add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) override;
  void set_prefixes(const PrefixTiers& tiers) override;

  // recurve_constraints_total{outcome}, recurve_constraints_waiting, recurve_constraint_bytes. One
  // thread at a time.
  void set_constraints(const ConstraintUse& use);
  void observe_constraint(double seconds);  // recurve_constraint_seconds: of a processor, on one

  // Times, in seconds.
  void observe_queue(double seconds) override;    // recurve_queue_seconds: received to admitted
  void observe_prefill(double seconds) override;  // recurve_prefill_seconds: to first token
  // From a request's arrival to where a thread reads its text, and how long that takes:
  // recurve_text_queue_seconds, recurve_text_seconds.
  void observe_text(double waited, double worked);
  void observe_ttft(double seconds);         // recurve_time_to_first_token_seconds: from received
  void observe_inter_token(double seconds);  // recurve_inter_token_seconds
  void observe_decode(double seconds) override;  // recurve_decode_seconds: first token to last
  // One step of the engine: recurve_step_seconds, recurve_batch_rows (tokens of the step).
  void observe_step(double seconds, int64_t rows) override;

  // recurve_trace_spans_total{result}
  void add_spans(Spans, int64_t n);

  // Logs: recurve_log_lines_dropped_total, of this process, is log_lines_dropped() of log.h.

  // Everything in the Prometheus text format 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
