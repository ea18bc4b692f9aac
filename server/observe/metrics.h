#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/observe/engine_metrics.h"
#include "server/request/end_reason.h"

namespace recurve {

// Constraints of answers; counts since the start.
struct ConstraintUse {
  int64_t compiled = 0, from_cache = 0, refused = 0;
  int64_t given_up = 0;     // no request waited any more
  int64_t turned_away = 0;  // too many waited
  int64_t waiting = 0;      // now, including those being compiled
  int64_t cached_bytes = 0;
};

// The server's counters for Prometheus. Every series exists from the start (a rate over a series
// that appears late misses its first event), and an event is one atomic addition or one histogram
// with its own mutex: no lookup, no string. Thread-safe. deploy/README.md has a table of them all.
//
// This header names no Prometheus type, so that its users need not link the library.
class Metrics final : public EngineMetrics {
 public:
  // Why a connection was closed on arrival.
  enum class Refusal {
    kTooMany,           // in all
    kTooManyOfAddress,  // of the peer's address
    kNoFile,            // the process has no descriptor left; it waits for one
  };
  static constexpr int kRefusals = 3;

  // Values of the label "of" of recurve_floods_total, in the order of FrameCounter::Flood.
  static constexpr std::array kFloods = {
      "resets",         "pings",   "settings",          "empty_data",
      "ignored_frames", "headers", "half_sent_messages"};

  // The result for spans of traced calls.
  enum class Spans {
    kSent,     // the collector has accepted them
    kDropped,  // the collector did not accept them, or too many waited
  };
  // Calls to --state-store for a session, of several requests each, and what became of the turns of
  // its sessions.
  static constexpr std::array kStoreCalls = {"commit", "take_over"};
  enum class StoreCall { kCommit, kTakeOver };
  static constexpr std::array kSharedTurns = {"committed", "recorded", "other_owner", "failed"};
  enum class TurnEnd {
    kCommitted,
    kRecorded,    // a repeated request, which got the recorded answer
    kOtherOwner,  // another server has continued the session
    kFailed,      // or it is unknown whether it is committed
  };
  // Counters per tenant.
  enum class Of { kRequests, kRefused, kPromptTokens, kGeneratedTokens };
  static constexpr int kOfTenant = 4;
  // Tenants with separate series; all later ones share the label "other".
  static constexpr size_t kMostTenants = 100;

  // Series of the engine and of its sessions have the label `model`, unless the name is empty;
  // what concerns the process, its connections, calls and tenants has not.
  struct About {
    std::string model = {}, version = {}, commit = {};  // recurve_build_info{version, commit}
  };
  Metrics() : Metrics(About()) {}
  explicit Metrics(const About& about);
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Requests.
  void request_received();  // recurve_requests_total
  // recurve_requests_finished_total{reason}, if the reason has a label
  void request_finished(EndReason);
  void request_failed(Code);                                 // recurve_errors_total{code}
  void set_waiting(int64_t requests) override;               // recurve_requests_waiting
  void set_expected_queue_seconds(double seconds) override;  // recurve_expected_queue_seconds

  // Connections. recurve_connections, recurve_connections_refused_total{reason}.
  void set_connections(int64_t n);
  void connection_refused(Refusal);
  // recurve_floods_total{of}; of: a FrameCounter::Flood.
  void flood_ended(int of);

  // Tenants. recurve_tenant_{requests,refused,prompt_tokens,generated_tokens}_total{tenant}. Unlike
  // the others these appear with the tenant's first request, and take a mutex and a lookup.
  void count_for(std::string_view tenant, Of, int64_t n = 1);

  // Tokens. recurve_prompt_tokens_total, recurve_generated_tokens_total; negative n is ignored.
  void add_prompt_tokens(int64_t n) override;
  void add_generated_tokens(int64_t n) override;
  void embedded();  // recurve_embeddings_total

  // Slots, pages and sessions. recurve_slots{tier} and recurve_requests_running,
  // recurve_pages{use}, recurve_utilization, recurve_preemptions_total, recurve_sessions{tier},
  // recurve_session_host_bytes. text() has the values of slots, pages and sessions that one call
  // set.
  void set_slots(const SlotCounts& use) override;
  void set_pages(const PageUse& use) override;
  void set_sessions(const SessionTiers& tiers) override;  // recurve_session_moves_total{to} too
  void set_session_host_bytes(int64_t bytes) override;
  // recurve_state_dir_bytes, recurve_state_dir_set_aside, recurve_state_dir_syncs_total,
  // recurve_state_dir_written_bytes_total
  void set_state_dir(const StateDirUse& use) override;
  // recurve_state_dir_seconds{call}, recurve_state_dir_failures_total{call}
  void observe_state_dir(int call, double seconds, bool failed) override;

  // recurve_state_store_seconds{call}, recurve_state_store_failures_total{call},
  // recurve_shared_turns_total{outcome}
  void observe_store(StoreCall call, double seconds, bool failed);
  void shared_turn(TurnEnd outcome);

  // recurve_prefix_prompts_total{begin}, recurve_prefix_tokens_total{of},
  // recurve_prefix_states, recurve_prefix_bytes, recurve_prefix_limit_bytes,
  // recurve_prefix_states_on_disk, recurve_prefix_bytes_on_disk
  void add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) override;
  void set_prefixes(const PrefixTiers& tiers) override;

  // recurve_constraints_total{outcome}, recurve_constraints_waiting, recurve_constraint_bytes. One
  // thread at a time.
  void set_constraints(const ConstraintUse& use);
  void observe_constraint(double seconds);  // recurve_constraint_seconds

  // Times, in seconds.
  void observe_queue(double seconds) override;    // recurve_queue_seconds: received to admitted
  void observe_prefill(double seconds) override;  // recurve_prefill_seconds: to first token
  // recurve_text_queue_seconds: received until a thread reads the text. recurve_text_seconds:
  // reading.
  void observe_text(double waited, double worked);
  void observe_ttft(double seconds);         // recurve_time_to_first_token_seconds: from received
  void observe_inter_token(double seconds);  // recurve_inter_token_seconds
  void observe_decode(double seconds) override;  // recurve_decode_seconds: first token to last
  // One step of the engine: recurve_step_seconds, recurve_batch_rows (tokens of the step).
  void observe_step(double seconds, int64_t rows) override;

  // recurve_trace_spans_total{result}
  void add_spans(Spans, int64_t n);

  // recurve_log_lines_dropped_total is log_lines_dropped() of log.h.

  // All metrics in the Prometheus text format 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
