#include "server/observe/metrics.h"

#include <fmt/format.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/observe/log.h"
#include "server/observe/metric_group.h"
#include "server/observe/process_metrics.h"

namespace recurve {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

const Buckets kRequestSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                 1,     2.5,    5,     10,   25,    50,   100, 250,  500};
const Buckets kTokenSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03,
                               0.05,   0.075,   0.1,    0.15,  0.25,   0.5,   1,    2.5,  5};
const Buckets kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

constexpr std::array kRefusalNames = {"too_many", "too_many_of_address", "no_file_left"};
static_assert(kRefusalNames.size() == Metrics::kRefusals);
constexpr std::array<std::array<const char*, 2>, Metrics::kOfTenant> kTenantCounters = {{
    {"recurve_tenant_requests_total", "Requests of a tenant that ended, including refused ones"},
    {"recurve_tenant_refused_total", "Requests of a tenant that were refused or failed"},
    {"recurve_tenant_prompt_tokens_total", "Prompt tokens of a tenant's requests"},
    {"recurve_tenant_generated_tokens_total", "Tokens generated for a tenant"},
}};
constexpr const char* kOtherTenants = "other";

std::map<std::string, std::string> labels_of(const Metrics::About& about) {
  if (about.model.empty()) return {};
  return {{"model", about.model}};
}

Histogram& histogram(const MetricGroup& of, const char* name, const char* help,
                     const Buckets& buckets) {
  return of.histogram_family(name, help).Add({}, buckets);
}

// A series of the family for each value of its label.
template <typename Metric, size_t N, typename... Args>
std::array<Metric*, N> add_series(prometheus::Family<Metric>& family, const char* label,
                                  const std::array<const char*, N>& values, const Args&... args) {
  std::array<Metric*, N> all;
  for (size_t i = 0; i < N; ++i) all[i] = &family.Add({{label, values[i]}}, args...);
  return all;
}

template <size_t N>
std::array<Counter*, N> counters(const MetricGroup& of, const char* name, const char* help,
                                 const char* label, const std::array<const char*, N>& values) {
  return add_series(of.counter_family(name, help), label, values);
}

template <size_t N>
std::array<Gauge*, N> gauges(const MetricGroup& of, const char* name, const char* help,
                             const char* label, const std::array<const char*, N>& values) {
  return add_series(of.gauge_family(name, help), label, values);
}

double share_of(int64_t part, int64_t all) {
  return all > 0 ? static_cast<double>(std::min(part, all)) / static_cast<double>(all) : 0;
}

template <size_t N>
void set_all(const std::array<Gauge*, N>& gauges, const std::array<int64_t, N>& values) {
  for (size_t i = 0; i < N; ++i) gauges[i]->Set(static_cast<double>(values[i]));
}

// One thread at a time.
void count_up_to(Counter& counter, int64_t count) {
  counter.Increment(static_cast<double>(count) - counter.Value());
}

template <size_t N>
void count_all_up_to(const std::array<Counter*, N>& counters,
                     const std::array<int64_t, N>& counts) {
  for (size_t i = 0; i < N; ++i) count_up_to(*counters[i], counts[i]);
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const About& about) : model{registry, labels_of(about)} {
    process
        .gauge_family("recurve_build_info",
                      "1, with the version and the commit of the program as labels")
        .Add({{"version", about.version}, {"commit", about.commit}})
        .Set(1);
    auto& finished_family = model.counter_family("recurve_requests_finished_total",
                                                 "Finished answers, one per choice, by reason");
    for (const EndRow& row : kEnds) {
      if (row.metric == nullptr) continue;
      finished[static_cast<size_t>(row.reason)] = &finished_family.Add({{"reason", row.metric}});
    }
    auto& error_family =
        process.counter_family("recurve_errors_total", "Failed calls, by gRPC status code");
    for (size_t code = 1; code < errors.size(); ++code) {
      errors[code] = &error_family.Add({{"code", std::string(kCodeNames[code])}});
    }
    for (size_t i = 0; i < tenant_families.size(); ++i) {
      const auto [name, help] = kTenantCounters[i];
      tenant_families[i] = &process.counter_family(name, help);
    }
  }

  std::vector<prometheus::MetricFamily> collect() const {
    std::lock_guard lock(scrape_mutex);
    process_metrics.update();
    count_up_to(log_lines, static_cast<int64_t>(log_lines_dropped()));
    show_uses();
    return registry.Collect();
  }
  // A scrape between two of these gauges' changes would show values that do not add up.
  void show_uses() const {
    SlotCounts slot_counts;
    PageUse page_use;
    SessionTiers tiers;
    {
      std::lock_guard lock(use_mutex);
      slot_counts = this->slot_counts;
      page_use = this->page_use;
      tiers = session_tiers;
    }
    running.Set(static_cast<double>(slot_counts.running));
    set_all(slots, {slot_counts.free, slot_counts.running, slot_counts.session_idle});
    set_all(pages, {page_use.free, page_use.total - page_use.free});
    const int64_t total = slot_counts.free + slot_counts.running + slot_counts.session_idle;
    utilization.Set(
        std::max(share_of(slot_counts.running, total), share_of(page_use.running, page_use.total)));
    count_up_to(preemptions, page_use.preemptions);
    set_all(sessions, {tiers.in_slot, tiers.in_host, tiers.on_disk, tiers.empty});
    count_all_up_to(session_moves, {tiers.to_slot, tiers.to_host, tiers.to_disk});
  }

  Registry registry;
  const MetricGroup process{registry}, model;
  const ProcessMetrics process_metrics{process};

  Counter& requests = process.counter("recurve_requests_total", "Requests received");
  Gauge& running = model.gauge("recurve_requests_running", "Requests that hold a slot");
  Gauge& waiting = model.gauge("recurve_requests_waiting", "Requests in the queue");
  Gauge& expected_queue = model.gauge("recurve_expected_queue_seconds",
                                      "Expected wait of a new short request before its first step");
  std::array<Counter*, kEnds.size()> finished{};     // by EndReason; null: not counted
  std::array<Counter*, kCodeNames.size()> errors{};  // by Code; null: OK
  Gauge& connections = process.gauge("recurve_connections", "Open client connections");
  const std::array<Counter*, kRefusals> refused =
      counters(process, "recurve_connections_refused_total",
               "Connections closed on arrival, by reason", "reason", kRefusalNames);
  const std::array<Counter*, kFloods.size()> floods = counters(
      process, "recurve_floods_total",
      "Connections ended because the client flooded the server, by kind of flood", "of", kFloods);

  Counter& prompt_tokens = model.counter("recurve_prompt_tokens_total", "Prompt tokens processed");
  Counter& generated_tokens = model.counter("recurve_generated_tokens_total", "Tokens generated");
  Counter& embeddings = model.counter("recurve_embeddings_total", "Embeddings computed");

  const std::array<Gauge*, 3> slots =
      gauges<3>(model, "recurve_slots", "State slots on the device, by use", "tier",
                {"free", "running", "session_idle"});
  const std::array<Gauge*, 2> pages =
      gauges<2>(model, "recurve_pages", "Pages of states that grow, on the device, by use", "use",
                {"free", "used"});
  Gauge& utilization = model.gauge(
      "recurve_utilization",
      "Slots or pages of running requests over what there are, whichever is more: 0 to 1");
  Counter& preemptions = model.counter("recurve_preemptions_total",
                                       "Requests that gave up their pages and waited again");
  const std::array<Gauge*, 4> sessions = gauges<4>(
      model, "recurve_sessions", "Open sessions and stored responses, by location of their state",
      "tier", {"slot", "host", "disk", "empty"});
  const std::array<Counter*, 3> session_moves =
      counters<3>(model, "recurve_session_moves_total", "Moves of session states, by destination",
                  "to", {"slot", "host", "disk"});
  Gauge& session_host_bytes =
      model.gauge("recurve_session_host_bytes", "Host memory used by states of idle sessions");
  const std::array<Histogram*, kStateDirCalls.size()> state_dir_calls = add_series(
      process.histogram_family("recurve_state_dir_seconds",
                               "Time of one operation on --state-dir: commit a change of a "
                               "durable session, spill a state from host memory, or read a "
                               "state"),
      "call", kStateDirCalls, kTokenSeconds);
  const std::array<Counter*, kStateDirCalls.size()> state_dir_failures =
      counters(process, "recurve_state_dir_failures_total", "Failed operations on --state-dir",
               "call", kStateDirCalls);
  Gauge& state_dir_bytes =
      process.gauge("recurve_state_dir_bytes", "Bytes of all files in --state-dir");
  Gauge& state_dir_set_aside = process.gauge(
      "recurve_state_dir_set_aside", "Damaged or foreign files in --state-dir that were set aside");
  Counter& state_dir_syncs =
      process.counter("recurve_state_dir_syncs_total",
                      "Syncs of files in --state-dir, which concurrent commits share");
  Counter& state_dir_written = process.counter("recurve_state_dir_written_bytes_total",
                                               "Bytes written to files in --state-dir");

  const std::array<Histogram*, kStoreCalls.size()> store_calls = add_series(
      process.histogram_family("recurve_state_store_seconds",
                               "Time of one operation on --state-store: commit a turn of a "
                               "session, or take a session over with its state"),
      "call", kStoreCalls, kTokenSeconds);
  const std::array<Counter*, kStoreCalls.size()> store_failures =
      counters(process, "recurve_state_store_failures_total", "Failed operations on --state-store",
               "call", kStoreCalls);
  const std::array<Counter*, kSharedTurns.size()> shared_turns =
      counters(process, "recurve_shared_turns_total",
               "Turns of sessions in --state-store: committed, answered from the record of an "
               "earlier one, refused because another server has continued the session, or failed",
               "outcome", kSharedTurns);

  const std::array<Counter*, kPrefixMisses.size()> prefix_prompts =
      counters(model, "recurve_prefix_prompts_total",
               "Started prompts, by whether they reused a cached prefix state (hit) or why not",
               "begin", kPrefixMisses);
  const std::array<Counter*, 3> prefix_tokens = counters<3>(
      model, "recurve_prefix_tokens_total",
      "Prompt tokens of known prefixes: spared by a cached state, or processed again because no "
      "state was cached there (replayed) or it was evicted or not readable (lost)",
      "of", {"spared", "replayed", "lost"});
  Gauge& prefix_states =
      model.gauge("recurve_prefix_states", "Cached prefix states in host memory");
  Gauge& prefix_bytes =
      model.gauge("recurve_prefix_bytes", "Bytes of the cached prefix states in host memory");
  Gauge& prefix_limit =
      model.gauge("recurve_prefix_limit_bytes",
                  "Bytes that cached prefix states may take in host memory now: at most "
                  "--prefix-memory, of what sessions have not reserved");
  Gauge& prefix_on_disk =
      model.gauge("recurve_prefix_states_on_disk",
                  "Cached prefix states on disk, some of which are in host memory too");
  Gauge& prefix_bytes_on_disk =
      model.gauge("recurve_prefix_bytes_on_disk",
                  "Bytes of the cached prefix states on disk, limited by --state-disk");

  const std::array<Counter*, 5> constraints =
      counters<5>(model, "recurve_constraints_total",
                  "Constraints of requests, by outcome: compiled, cached, refused, given up "
                  "because no request waited any more, or turned away because too many waited",
                  "outcome", {"compiled", "cached", "refused", "given_up", "turned_away"});
  Gauge& constraints_waiting =
      model.gauge("recurve_constraints_waiting", "Constraints being compiled or waiting for it");
  Gauge& constraint_bytes = model.gauge("recurve_constraint_bytes", "Memory of cached constraints");
  Histogram& constraint = histogram(model, "recurve_constraint_seconds",
                                    "Processor time to compile one constraint", kRequestSeconds);

  Histogram& queue = histogram(model, "recurve_queue_seconds",
                               "Time from a request's arrival to its first step", kRequestSeconds);
  Histogram& prefill =
      histogram(model, "recurve_prefill_seconds",
                "Time from a request's first step to its first token", kRequestSeconds);
  Histogram& text_queue =
      histogram(process, "recurve_text_queue_seconds",
                "Time from a call's arrival until a thread reads its text", kRequestSeconds);
  Histogram& text =
      histogram(process, "recurve_text_seconds",
                "Time to convert a call's text or messages to token ids", kRequestSeconds);
  Histogram& ttft = histogram(model, "recurve_time_to_first_token_seconds",
                              "Time from a request's arrival to its first token", kRequestSeconds);
  Histogram& inter_token = histogram(model, "recurve_inter_token_seconds",
                                     "Time between two tokens of an answer", kTokenSeconds);
  Histogram& decode = histogram(model, "recurve_decode_seconds",
                                "Time from a request's first token to its last", kRequestSeconds);
  Histogram& step =
      histogram(model, "recurve_step_seconds", "Time of one step of the engine", kTokenSeconds);
  Histogram& rows = histogram(model, "recurve_batch_rows", "Tokens in the batch of a step", kRows);

  const std::array<Counter*, 2> spans =
      counters<2>(process, "recurve_trace_spans_total",
                  "Spans of traced calls, by whether the collector accepted them", "result",
                  {"sent", "dropped"});
  mutable std::mutex scrape_mutex;
  mutable std::mutex use_mutex;  // of the three below
  SlotCounts slot_counts;
  PageUse page_use;
  SessionTiers session_tiers;
  Counter& log_lines = process.counter("recurve_log_lines_dropped_total",
                                       "Log lines lost because they were not read in time");

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
};

Metrics::Metrics(const About& about) : impl_(std::make_unique<Impl>(about)) {}
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

void Metrics::set_waiting(int64_t requests) { impl_->waiting.Set(static_cast<double>(requests)); }

void Metrics::add_prompt_tokens(int64_t n) {
  impl_->prompt_tokens.Increment(static_cast<double>(n));
}

void Metrics::add_generated_tokens(int64_t n) {
  impl_->generated_tokens.Increment(static_cast<double>(n));
}

void Metrics::embedded() { impl_->embeddings.Increment(); }

void Metrics::set_slots(const SlotCounts& use) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->slot_counts = use;
}

void Metrics::set_pages(const PageUse& use) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->page_use = use;
}

void Metrics::set_sessions(const SessionTiers& tiers) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->session_tiers = tiers;
}

void Metrics::set_session_host_bytes(int64_t bytes) {
  impl_->session_host_bytes.Set(static_cast<double>(bytes));
}

void Metrics::set_state_dir(const StateDirUse& use) {
  impl_->state_dir_bytes.Set(static_cast<double>(use.bytes));
  impl_->state_dir_set_aside.Set(static_cast<double>(use.set_aside));
  count_up_to(impl_->state_dir_syncs, use.syncs);
  count_up_to(impl_->state_dir_written, use.written);
}

void Metrics::observe_state_dir(int call, double seconds, bool failed) {
  const auto index = static_cast<size_t>(call);
  impl_->state_dir_calls.at(index)->Observe(seconds);
  if (failed) impl_->state_dir_failures.at(index)->Increment();
}

void Metrics::observe_store(StoreCall call, double seconds, bool failed) {
  const auto index = static_cast<size_t>(call);
  impl_->store_calls.at(index)->Observe(seconds);
  if (failed) impl_->store_failures.at(index)->Increment();
}

void Metrics::shared_turn(TurnEnd outcome) {
  impl_->shared_turns.at(static_cast<size_t>(outcome))->Increment();
}

void Metrics::add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) {
  impl_->prefix_prompts.at(static_cast<size_t>(miss))->Increment();
  const std::array counts = {tokens, replayed, lost};
  for (size_t i = 0; i < counts.size(); ++i) {
    impl_->prefix_tokens[i]->Increment(static_cast<double>(counts[i]));
  }
}

void Metrics::set_prefixes(const PrefixTiers& tiers) {
  impl_->prefix_states.Set(static_cast<double>(tiers.states));
  impl_->prefix_bytes.Set(static_cast<double>(tiers.bytes));
  impl_->prefix_limit.Set(static_cast<double>(tiers.limit));
  impl_->prefix_on_disk.Set(static_cast<double>(tiers.disk_states));
  impl_->prefix_bytes_on_disk.Set(static_cast<double>(tiers.disk_bytes));
}

void Metrics::set_constraints(const ConstraintUse& use) {
  count_all_up_to(impl_->constraints,
                  {use.compiled, use.from_cache, use.refused, use.given_up, use.turned_away});
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
  impl_->spans[static_cast<size_t>(result)]->Increment(static_cast<double>(n));
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(impl_->collect());
}

}  // namespace recurve
