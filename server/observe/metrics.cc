#include "server/observe/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/observe/log.h"

namespace recurve {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

// From a tiny model on an idle machine to a long prompt behind a queue.
const Buckets kRequestSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                 1,     2.5,    5,     10,   25,    50,   100, 250,  500};
const Buckets kTokenSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03,
                               0.05,   0.075,   0.1,    0.15,  0.25,   0.5,   1,    2.5,  5};
const Buckets kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

constexpr std::array<const char*, Metrics::kRefusals> kRefusalNames = {
    "too_many", "too_many_of_address", "no_file_left"};

// As FrameCounter has them.
constexpr std::array<const char*, 7> kFloodNames = {
    "resets", "pings", "settings", "empty_data", "ignored_frames", "headers", "half_sent_messages"};

constexpr std::array<std::array<const char*, 2>, Metrics::kOfTenant> kTenantCounters = {{
    {"recurve_tenant_requests_total", "Requests of a tenant that ended, refused ones too"},
    {"recurve_tenant_refused_total", "Requests of a tenant that were refused or failed"},
    {"recurve_tenant_prompt_tokens_total", "Prompt tokens of a tenant's requests"},
    {"recurve_tenant_generated_tokens_total", "Tokens generated for a tenant"},
}};
constexpr const char* kOtherTenants = "other";

prometheus::Family<Counter>& counters(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<Gauge>& gauges(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Counter& counter(Registry& registry, const char* name, const char* help) {
  return counters(registry, name, help).Add({});
}

Gauge& gauge(Registry& registry, const char* name, const char* help) {
  return gauges(registry, name, help).Add({});
}

// To be called by one thread at a time.
void count_up_to(Counter& counter, int64_t count) {
  counter.Increment(static_cast<double>(count) - counter.Value());
}

Histogram& histogram(Registry& registry, const char* name, const char* help,
                     const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

}  // namespace

struct Metrics::Impl {
  Impl() {
    auto& finished_family = counters(registry, "recurve_requests_finished_total",
                                     "Answers that ended, by reason; one a choice");
    for (const EndRow& row : kEnds) {
      if (row.metric == nullptr) continue;
      finished[static_cast<size_t>(row.reason)] = &finished_family.Add({{"reason", row.metric}});
    }
    auto& error_family =
        counters(registry, "recurve_errors_total", "Calls that failed, by gRPC status code");
    for (size_t code = 1; code < errors.size(); ++code) {
      errors[code] = &error_family.Add({{"code", std::string(kCodeNames[code])}});
    }
    auto& refusal_family = counters(registry, "recurve_connections_refused_total",
                                    "Connections that were closed as they came, by reason");
    for (size_t i = 0; i < refused.size(); ++i) {
      refused[i] = &refusal_family.Add({{"reason", kRefusalNames[i]}});
    }
    auto& flood_family = counters(registry, "recurve_floods_total",
                                  "Connections that were ended for what they flooded the server "
                                  "with");
    for (size_t i = 0; i < floods.size(); ++i)
      floods[i] = &flood_family.Add({{"of", kFloodNames[i]}});
    for (size_t i = 0; i < tenant_families.size(); ++i) {
      const auto [name, help] = kTenantCounters[i];
      tenant_families[i] = &counters(registry, name, help);
    }
    auto& begin_family = counters(registry, "recurve_prefix_prompts_total",
                                  "Prompts that began, by whether they did with a state that "
                                  "another one had left, or why not");
    for (size_t i = 0; i < prefix_prompts.size(); ++i) {
      prefix_prompts[i] = &begin_family.Add({{"begin", kPrefixMisses[i]}});
    }
    auto& prefix_family =
        counters(registry, "recurve_prefix_tokens_total",
                 "Tokens that prompts had begun with before: spared, or absorbed anew as no state "
                 "was to be kept of them (replayed) or none was there any more (lost)");
    prefix_spared = &prefix_family.Add({{"of", "spared"}});
    prefix_replayed = &prefix_family.Add({{"of", "replayed"}});
    prefix_lost = &prefix_family.Add({{"of", "lost"}});
    auto& span_family = counters(registry, "recurve_trace_spans_total",
                                 "Spans of traced calls, by whether the collector has them");
    spans_sent = &span_family.Add({{"result", "sent"}});
    spans_dropped = &span_family.Add({{"result", "dropped"}});
    auto& constraint_family =
        counters(registry, "recurve_constraints_total",
                 "What answers had to be, by what became of it: compiled, there already, refused, "
                 "given up as nobody waited any more, or turned away as too many waited");
    constraints_compiled = &constraint_family.Add({{"outcome", "compiled"}});
    constraints_cached = &constraint_family.Add({{"outcome", "cached"}});
    constraints_refused = &constraint_family.Add({{"outcome", "refused"}});
    constraints_given_up = &constraint_family.Add({{"outcome", "given_up"}});
    constraints_turned_away = &constraint_family.Add({{"outcome", "turned_away"}});
    auto& slot_family = gauges(registry, "recurve_slots", "State slots on the device, by use");
    slots_free = &slot_family.Add({{"tier", "free"}});
    slots_running = &slot_family.Add({{"tier", "running"}});
    slots_session_idle = &slot_family.Add({{"tier", "session_idle"}});
    auto& session_family =
        gauges(registry, "recurve_sessions", "Open sessions, by where their state is");
    sessions_slot = &session_family.Add({{"tier", "slot"}});
    sessions_host = &session_family.Add({{"tier", "host"}});
    sessions_disk = &session_family.Add({{"tier", "disk"}});
    sessions_empty = &session_family.Add({{"tier", "empty"}});
    auto& move_family = counters(registry, "recurve_session_moves_total",
                                 "States of sessions that have moved, by where to");
    moves_slot = &move_family.Add({{"to", "slot"}});
    moves_host = &move_family.Add({{"to", "host"}});
    moves_disk = &move_family.Add({{"to", "disk"}});
    auto& call_family =
        prometheus::BuildHistogram()
            .Name("recurve_state_dir_seconds")
            .Help(
                "What a server asks of --state-dir: a change of a durable session is committed, "
                "a state is written to leave host memory, one is read")
            .Register(registry);
    auto& failure_family =
        counters(registry, "recurve_state_dir_failures_total", "Of these, those that failed");
    for (size_t i = 0; i < state_dir_calls.size(); ++i) {
      state_dir_calls[i] = &call_family.Add({{"call", kStateDirCalls[i]}}, kTokenSeconds);
      state_dir_failures[i] = &failure_family.Add({{"call", kStateDirCalls[i]}});
    }
  }

  std::vector<prometheus::MetricFamily> collect() const {
    {
      std::lock_guard lock(log_mutex);
      count_up_to(log_lines, log_lines_dropped());
    }
    return registry.Collect();
  }

  Registry registry;

  Counter& requests = counter(registry, "recurve_requests_total", "Requests received");
  Gauge& running = gauge(registry, "recurve_requests_running", "Requests that hold a slot");
  Gauge& waiting = gauge(registry, "recurve_requests_waiting", "Requests in the queue");
  Gauge& expected_queue = gauge(registry, "recurve_expected_queue_seconds",
                                "What a short request that came now would wait for its first step");
  Gauge& connections = gauge(registry, "recurve_connections", "Connections of clients");
  Counter& prompt_tokens =
      counter(registry, "recurve_prompt_tokens_total", "Prompt tokens absorbed");
  Counter& generated_tokens =
      counter(registry, "recurve_generated_tokens_total", "Tokens generated");
  mutable std::mutex log_mutex;
  Counter& log_lines = counter(registry, "recurve_log_lines_dropped_total",
                               "Lines of the log that were lost because nobody read them in time");
  Gauge& session_host_bytes = gauge(registry, "recurve_session_host_bytes",
                                    "Host memory that holds states of idle sessions");
  Gauge& state_dir_bytes =
      gauge(registry, "recurve_state_dir_bytes", "Bytes of all files of --state-dir");
  Gauge& state_dir_set_aside =
      gauge(registry, "recurve_state_dir_set_aside",
            "Files of --state-dir that are damaged, or foreign, and were set aside");
  Counter& state_dir_syncs =
      counter(registry, "recurve_state_dir_syncs_total",
              "Syncs of files of --state-dir, which commits that come together share");

  Gauge& prefix_states =
      gauge(registry, "recurve_prefix_states", "States that prompts have left in host memory");
  Gauge& prefix_bytes =
      gauge(registry, "recurve_prefix_bytes", "What these take, of --prefix-memory");
  Gauge& prefix_on_disk =
      gauge(registry, "recurve_prefix_states_on_disk",
            "States that prompts have left on the disk, of which some are in host memory too");
  Gauge& prefix_bytes_on_disk =
      gauge(registry, "recurve_prefix_bytes_on_disk", "What these take, of --state-disk");

  Gauge& constraints_waiting = gauge(registry, "recurve_constraints_waiting",
                                     "Constraints that are being compiled, or wait");
  Gauge& constraint_bytes =
      gauge(registry, "recurve_constraint_bytes",
            "Memory of compiled constraints that are kept for whoever asks again");
  Histogram& constraint = histogram(registry, "recurve_constraint_seconds",
                                    "Of a processor, on compiling one constraint", kRequestSeconds);

  Histogram& queue = histogram(registry, "recurve_queue_seconds",
                               "From a request's arrival to its first step", kRequestSeconds);
  Histogram& prefill = histogram(registry, "recurve_prefill_seconds",
                                 "From a request's first step to its first token", kRequestSeconds);
  Histogram& text_queue =
      histogram(registry, "recurve_text_queue_seconds",
                "From a call's arrival to where a thread reads its text", kRequestSeconds);
  Histogram& text = histogram(registry, "recurve_text_seconds",
                              "Reading a call's text or messages to ids", kRequestSeconds);
  Histogram& ttft = histogram(registry, "recurve_time_to_first_token_seconds",
                              "From a request's arrival to its first token", kRequestSeconds);
  Histogram& inter_token = histogram(registry, "recurve_inter_token_seconds",
                                     "Between two tokens of an answer", kTokenSeconds);
  Histogram& decode = histogram(registry, "recurve_decode_seconds",
                                "From a request's first token to its last", kRequestSeconds);
  Histogram& step =
      histogram(registry, "recurve_step_seconds", "One step of the engine", kTokenSeconds);
  Histogram& rows = histogram(registry, "recurve_batch_rows", "Tokens in a step's batch", kRows);

  std::array<Counter*, kEnds.size()> finished{};  // null: not counted
  std::array<Counter*, kRefusals> refused{};
  std::array<Counter*, kFloodNames.size()> floods{};

  // Of a tenant, or of the others together.
  using OfTenant = std::array<Counter*, kOfTenant>;
  OfTenant& of_tenant(std::string_view name) {
    auto found = tenants.find(name);
    if (found != tenants.end()) return found->second;
    if (tenants.size() >= kMostTenants) name = kOtherTenants;
    found = tenants.emplace(name, OfTenant{}).first;
    for (size_t i = 0; i < tenant_families.size(); ++i) {
      found->second[i] = &tenant_families[i]->Add({{"tenant", std::string(name)}});
    }
    return found->second;
  }
  std::array<prometheus::Family<Counter>*, kOfTenant> tenant_families{};
  std::mutex tenants_mutex;
  std::map<std::string, OfTenant, std::less<>> tenants;
  std::array<Counter*, kCodeNames.size()> errors{};  // [0], OK, is no error
  std::array<Counter*, std::size(kPrefixMisses)> prefix_prompts{};
  Counter *constraints_compiled, *constraints_cached, *constraints_refused, *constraints_given_up,
      *constraints_turned_away;
  Counter *prefix_spared, *prefix_replayed, *prefix_lost, *spans_sent, *spans_dropped;
  Gauge *slots_free, *slots_running, *slots_session_idle;
  Gauge *sessions_slot, *sessions_host, *sessions_disk, *sessions_empty;
  Counter *moves_slot, *moves_host, *moves_disk;
  std::array<Histogram*, std::size(kStateDirCalls)> state_dir_calls{};
  std::array<Counter*, std::size(kStateDirCalls)> state_dir_failures{};
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::request_received() { impl_->requests.Increment(); }

void Metrics::request_finished(EndReason reason) {
  Counter* const counter = impl_->finished.at(static_cast<size_t>(reason));
  if (counter != nullptr) counter->Increment();
}

void Metrics::request_failed(Code code) {
  impl_->errors.at(static_cast<size_t>(code))->Increment();
}

void Metrics::set_expected_queue_seconds(double seconds) { impl_->expected_queue.Set(seconds); }

void Metrics::set_connections(int64_t n) { impl_->connections.Set(static_cast<double>(n)); }

void Metrics::flood_ended(int of) { impl_->floods[static_cast<size_t>(of)]->Increment(); }

void Metrics::count_for(std::string_view tenant, Of what, int64_t n) {
  if (n <= 0) return;
  std::lock_guard lock(impl_->tenants_mutex);
  impl_->of_tenant(tenant)[static_cast<size_t>(what)]->Increment(static_cast<double>(n));
}

void Metrics::connection_refused(Refusal why) {
  impl_->refused.at(static_cast<size_t>(why))->Increment();
}

void Metrics::set_requests(int64_t running, int64_t waiting) {
  impl_->running.Set(static_cast<double>(running));
  impl_->waiting.Set(static_cast<double>(waiting));
}

void Metrics::add_prompt_tokens(int64_t n) {
  impl_->prompt_tokens.Increment(static_cast<double>(n));
}

void Metrics::add_generated_tokens(int64_t n) {
  impl_->generated_tokens.Increment(static_cast<double>(n));
}

void Metrics::set_slots(int64_t free, int64_t running, int64_t session_idle) {
  impl_->slots_free->Set(static_cast<double>(free));
  impl_->slots_running->Set(static_cast<double>(running));
  impl_->slots_session_idle->Set(static_cast<double>(session_idle));
}

void Metrics::set_sessions(const SessionTiers& tiers) {
  impl_->sessions_slot->Set(static_cast<double>(tiers.in_slot));
  impl_->sessions_host->Set(static_cast<double>(tiers.in_host));
  impl_->sessions_disk->Set(static_cast<double>(tiers.on_disk));
  impl_->sessions_empty->Set(static_cast<double>(tiers.empty));
  count_up_to(*impl_->moves_slot, tiers.to_slot);
  count_up_to(*impl_->moves_host, tiers.to_host);
  count_up_to(*impl_->moves_disk, tiers.to_disk);
}

void Metrics::set_session_host_bytes(int64_t bytes) {
  impl_->session_host_bytes.Set(static_cast<double>(bytes));
}

void Metrics::set_state_dir(const StateDirUse& use) {
  impl_->state_dir_bytes.Set(static_cast<double>(use.bytes));
  impl_->state_dir_set_aside.Set(static_cast<double>(use.set_aside));
  count_up_to(impl_->state_dir_syncs, use.syncs);
}

void Metrics::observe_state_dir(int call, double seconds, bool failed) {
  const auto place = static_cast<size_t>(call);
  impl_->state_dir_calls.at(place)->Observe(seconds);
  if (failed) impl_->state_dir_failures.at(place)->Increment();
}

void Metrics::add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) {
  impl_->prefix_replayed->Increment(static_cast<double>(replayed));
  impl_->prefix_prompts.at(static_cast<size_t>(miss))->Increment();
  impl_->prefix_spared->Increment(static_cast<double>(tokens));
  impl_->prefix_lost->Increment(static_cast<double>(lost));
}

void Metrics::set_prefixes(const PrefixTiers& tiers) {
  impl_->prefix_states.Set(static_cast<double>(tiers.states));
  impl_->prefix_bytes.Set(static_cast<double>(tiers.bytes));
  impl_->prefix_on_disk.Set(static_cast<double>(tiers.disk_states));
  impl_->prefix_bytes_on_disk.Set(static_cast<double>(tiers.disk_bytes));
}

void Metrics::set_constraints(const ConstraintUse& use) {
  count_up_to(*impl_->constraints_compiled, use.compiled);
  count_up_to(*impl_->constraints_cached, use.from_cache);
  count_up_to(*impl_->constraints_refused, use.refused);
  count_up_to(*impl_->constraints_given_up, use.given_up);
  count_up_to(*impl_->constraints_turned_away, use.turned_away);
  impl_->constraints_waiting.Set(static_cast<double>(use.waiting));
  impl_->constraint_bytes.Set(static_cast<double>(use.cached_bytes));
}

void Metrics::observe_constraint(double seconds) { impl_->constraint.Observe(seconds); }

void Metrics::observe_queue(double seconds) { impl_->queue.Observe(seconds); }
void Metrics::observe_prefill(double seconds) { impl_->prefill.Observe(seconds); }
void Metrics::observe_text(double waited, double worked) {
  impl_->text_queue.Observe(waited);
  impl_->text.Observe(worked);
}
void Metrics::observe_ttft(double seconds) { impl_->ttft.Observe(seconds); }
void Metrics::observe_inter_token(double seconds) { impl_->inter_token.Observe(seconds); }
void Metrics::observe_decode(double seconds) { impl_->decode.Observe(seconds); }

void Metrics::observe_step(double seconds, int64_t rows) {
  impl_->step.Observe(seconds);
  impl_->rows.Observe(static_cast<double>(rows));
}

void Metrics::add_spans(Spans result, int64_t n) {
  (result == Spans::kSent ? impl_->spans_sent : impl_->spans_dropped)
      ->Increment(static_cast<double>(n));
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(impl_->collect());
}

}  // namespace recurve
