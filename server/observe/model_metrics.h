#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/observe/engine_metrics.h"
#include "server/request/end_reason.h"

namespace prometheus {
class Registry;
}

namespace recurve {

// Constraints of answers; counts since the start.
struct ConstraintUse {
  int64_t compiled = 0, from_cache = 0, refused = 0;
  int64_t given_up = 0;     // no request waited any more
  int64_t turned_away = 0;  // too many waited
  int64_t waiting = 0;      // now, including those being compiled
  int64_t cached_bytes = 0;
};

// The counters of one model: see Metrics, which has those of all. Its series exist as long as it
// does. Thread-safe.
class ModelMetrics : public EngineMetrics {
 public:
  // model: the label of all series; empty: none.
  ModelMetrics(std::shared_ptr<prometheus::Registry> registry, const std::string& model);
  ~ModelMetrics() override;
  ModelMetrics(const ModelMetrics&) = delete;
  ModelMetrics& operator=(const ModelMetrics&) = delete;

  // Requests.
  // recurve_requests_finished_total{reason}, if the reason has a label
  void request_finished(EndReason);
  void set_waiting(int64_t requests) override;               // recurve_requests_waiting
  void set_expected_queue_seconds(double seconds) override;  // recurve_expected_queue_seconds

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

  // recurve_prefix_prompts_total{begin}, recurve_prefix_tokens_total{of},
  // recurve_prefix_states, recurve_prefix_bytes, recurve_prefix_limit_bytes,
  // recurve_prefix_states_on_disk, recurve_prefix_bytes_on_disk
  void add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) override;
  void set_prefixes(const PrefixTiers& tiers) override;
  // Cached prefixes in --state-store: recurve_prefix_store_prompts_total{result}, by
  // SharedPrefixUse; recurve_prefix_store_states, recurve_prefix_store_bytes; and what was sent
  // there and came, recurve_prefix_store_transferred_bytes_total{direction}. Any thread.
  void add_prefix_store_use(int use);
  void set_prefix_store(int64_t states, int64_t bytes);
  void add_prefix_store_bytes(uint64_t written, uint64_t read);
  void add_initial_state(const std::string& name) override;  // recurve_initial_states_total
  void add_adapter(const std::string& name) override;        // recurve_adapter_requests_total

  // recurve_constraints_total{outcome}, recurve_constraints_waiting, recurve_constraint_bytes. One
  // thread at a time.
  void set_constraints(const ConstraintUse& use);
  void observe_constraint(double seconds);  // recurve_constraint_seconds

  // Times, in seconds.
  void observe_queue(double seconds) override;    // recurve_queue_seconds: received to admitted
  void observe_prefill(double seconds) override;  // recurve_prefill_seconds: to first token
  void observe_ttft(double seconds);         // recurve_time_to_first_token_seconds: from received
  void observe_inter_token(double seconds);  // recurve_inter_token_seconds
  void observe_decode(double seconds) override;  // recurve_decode_seconds: first token to last
  // One step of the engine: recurve_step_seconds, recurve_batch_rows (tokens of the step).
  void observe_step(double seconds, int64_t rows) override;

  // Shows the values of slots, pages and sessions that were set last. One thread at a time.
  void show_uses() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
