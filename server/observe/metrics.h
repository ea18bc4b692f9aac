#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/observe/model_metrics.h"
#include "server/request/end_reason.h"

namespace recurve {

// The server's counters for Prometheus. Every series exists from the start, or from the time at
// which its model is loaded (a rate over a series that appears late misses its first event), and an
// event is one atomic addition or one histogram with its own mutex: no lookup, no string.
// Thread-safe. deploy/README.md has a table of them all.
//
// This header names no Prometheus type, so that its users need not link the library.
class Metrics final : public ModelMetrics {
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
  // Bytes of states that --state-store was sent, or has sent.
  static constexpr std::array kStoreBytes = {"written", "read"};
  enum class StoreBytes { kWritten, kRead };
  // Counters per tenant.
  enum class Of { kRequests, kRefused, kPromptTokens, kGeneratedTokens };
  static constexpr int kOfTenant = 4;
  // Tenants with separate series; all later ones share the label "other".
  static constexpr size_t kMostTenants = 100;

  // Series of an engine and of its sessions have the label `model`, unless there are no names; what
  // concerns the process, its connections, calls and tenants has not.
  struct About {
    std::vector<std::string> models = {};   // names
    std::string version = {}, commit = {};  // recurve_build_info{version, commit}
  };
  Metrics() : Metrics(About()) {}
  explicit Metrics(const About& about);
  ~Metrics() override;
  // Of the model of that name, which may be new; without names, of all. The first one is this.
  std::shared_ptr<ModelMetrics> of_model(const std::string& name);
  // Its series go with the last user of them. Of no effect on the first.
  void remove_model(const std::string& name);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Requests.
  void request_received();    // recurve_requests_total
  void request_failed(Code);  // recurve_errors_total{code}

  // Connections. recurve_connections, recurve_connections_refused_total{reason}.
  void set_connections(int64_t n);
  void connection_refused(Refusal);
  // recurve_floods_total{of}; of: a FrameCounter::Flood.
  void flood_ended(int of);

  // Tenants. recurve_tenant_{requests,refused,prompt_tokens,generated_tokens}_total{tenant}. Unlike
  // the others these appear with the tenant's first request, and take a mutex and a lookup.
  void count_for(std::string_view tenant, Of, int64_t n = 1);

  // recurve_text_queue_seconds: received until a thread reads the text. recurve_text_seconds:
  // reading.
  void observe_text(double waited, double worked);
  // recurve_state_store_seconds{call}, recurve_state_store_failures_total{call},
  // recurve_shared_turns_total{outcome}
  void observe_store(StoreCall call, double seconds, bool failed);
  void shared_turn(TurnEnd outcome);
  // recurve_drain_marks_left_total
  void leave_marks(int64_t n);
  // recurve_state_store_bytes_total{direction}
  void count_store_bytes(StoreBytes direction, uint64_t bytes);

  // recurve_trace_spans_total{result}
  void add_spans(Spans, int64_t n);

  // recurve_log_lines_dropped_total is log_lines_dropped() of log.h.

  // All metrics in the Prometheus text format 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  Metrics(const About& about, const std::shared_ptr<prometheus::Registry>& registry);
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
