#include "server/observe/model_metrics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/observe/metric_group.h"

namespace recurve {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

double share_of(int64_t part, int64_t all) {
  return all > 0 ? static_cast<double>(std::min(part, all)) / static_cast<double>(all) : 0;
}

template <size_t N>
void set_all(const std::array<Gauge*, N>& gauges, const std::array<int64_t, N>& values) {
  for (size_t i = 0; i < N; ++i) gauges[i]->Set(static_cast<double>(values[i]));
}

template <size_t N>
void count_all_up_to(const std::array<Counter*, N>& counters,
                     const std::array<int64_t, N>& counts) {
  for (size_t i = 0; i < N; ++i) count_up_to(*counters[i], counts[i]);
}

MetricLabels labels_of(const std::string& model) {
  if (model.empty()) return {};
  return {{"model", model}};
}

}  // namespace

struct ModelMetrics::Impl {
  Impl(std::shared_ptr<prometheus::Registry> of, const std::string& name)
      : registry(std::move(of)), model{*registry, labels_of(name), &removals} {
    auto& finished_family = model.counter_family("recurve_requests_finished_total",
                                                 "Finished answers, one per choice, by reason");
    for (const EndRow& row : kEnds) {
      if (row.metric == nullptr) continue;
      finished[static_cast<size_t>(row.reason)] =
          &model.add(finished_family, model.with("reason", row.metric));
    }
  }
  ~Impl() {
    for (const auto& remove : removals) remove();
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

  const std::shared_ptr<prometheus::Registry> registry;
  std::vector<std::function<void()>> removals;
  const MetricGroup model;
  Gauge& running = model.gauge("recurve_requests_running", "Requests that hold a slot");
  Gauge& waiting = model.gauge("recurve_requests_waiting", "Requests in the queue");
  Gauge& expected_queue = model.gauge("recurve_expected_queue_seconds",
                                      "Expected wait of a new short request before its first step");
  std::array<Counter*, kEnds.size()> finished{};  // by EndReason; null: not counted
  Counter& prompt_tokens = model.counter("recurve_prompt_tokens_total", "Prompt tokens processed");
  Counter& generated_tokens = model.counter("recurve_generated_tokens_total", "Tokens generated");
  Counter& embeddings = model.counter("recurve_embeddings_total", "Embeddings computed");

  const std::array<Gauge*, 3> slots =
      model.gauges<3>("recurve_slots", "State slots on the device, by use", "tier",
                      {"free", "running", "session_idle"});
  const std::array<Gauge*, 2> pages = model.gauges<2>(
      "recurve_pages", "Pages of states that grow, on the device, by use", "use", {"free", "used"});
  Gauge& utilization = model.gauge(
      "recurve_utilization",
      "Slots or pages of running requests over what there are, whichever is more: 0 to 1");
  Counter& preemptions = model.counter("recurve_preemptions_total",
                                       "Requests that gave up their pages and waited again");
  const std::array<Gauge*, 4> sessions = model.gauges<4>(
      "recurve_sessions", "Open sessions and stored responses, by location of their state", "tier",
      {"slot", "host", "disk", "empty"});
  const std::array<Counter*, 3> session_moves =
      model.counters<3>("recurve_session_moves_total", "Moves of session states, by destination",
                        "to", {"slot", "host", "disk"});
  Gauge& session_host_bytes =
      model.gauge("recurve_session_host_bytes", "Host memory used by states of idle sessions");
  const std::array<Histogram*, kStateDirCalls.size()> state_dir_calls =
      model.add_series(model.histogram_family("recurve_state_dir_seconds",
                                              "Time of one operation on --state-dir: commit a "
                                              "change of a durable session, spill a state "
                                              "from host memory, or read a state"),
                       "call", kStateDirCalls, kTokenSeconds);
  const std::array<Counter*, kStateDirCalls.size()> state_dir_failures =
      model.counters("recurve_state_dir_failures_total", "Failed operations on --state-dir", "call",
                     kStateDirCalls);
  Gauge& state_dir_bytes =
      model.gauge("recurve_state_dir_bytes", "Bytes of all files in --state-dir");
  Gauge& state_dir_set_aside = model.gauge(
      "recurve_state_dir_set_aside", "Damaged or foreign files in --state-dir that were set aside");
  Counter& state_dir_syncs =
      model.counter("recurve_state_dir_syncs_total",
                    "Syncs of files in --state-dir, which concurrent commits share");
  Counter& state_dir_written = model.counter("recurve_state_dir_written_bytes_total",
                                             "Bytes written to files in --state-dir");

  const std::array<Counter*, kPrefixMisses.size()> prefix_prompts = model.counters(
      "recurve_prefix_prompts_total",
      "Started prompts, by whether they reused a cached prefix state (hit) or why not", "begin",
      kPrefixMisses);
  const std::array<Counter*, 3> prefix_tokens = model.counters<3>(
      "recurve_prefix_tokens_total",
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

  const std::array<Counter*, 5> prefix_store_prompts = model.counters<5>(
      "recurve_prefix_store_prompts_total",
      "Prompts for which a cached prefix in --state-store might be of use: it was read (hit), "
      "there is none longer than in memory (absent), reading would take longer than computing "
      "(slower), "
      "it cannot be used (refused), or it did not come in time (late)",
      "result", {"hit", "absent", "slower", "refused", "late"});
  Gauge& prefix_store_states =
      model.gauge("recurve_prefix_store_states", "Cached prefix states in --state-store");
  Gauge& prefix_store_bytes =
      model.gauge("recurve_prefix_store_bytes",
                  "Bytes of the cached prefix states in --state-store, limited by --prefix-store");
  const std::array<Counter*, 2> prefix_store_transferred =
      model.counters<2>("recurve_prefix_store_transferred_bytes_total",
                        "Bytes of cached prefix states written to --state-store and read there",
                        "direction", {"written", "read"});

  // By a name that the server was started with. Of the engine's thread alone.
  struct ByName {
    const MetricGroup& model;
    const char* const label;
    prometheus::Family<Counter>& family;
    std::map<std::string, Counter*> counters = {};

    void count(const std::string& name) {
      Counter*& counter = counters[name];
      if (counter == nullptr) counter = &model.add(family, model.with(label, name));
      counter->Increment();
    }
  };
  ByName initial_states{
      model, "initial_state",
      model.counter_family("recurve_initial_states_total",
                           "Requests without a session, and new sessions, that started from an "
                           "initial state")};
  ByName adapters{model, "adapter",
                  model.counter_family("recurve_adapter_requests_total",
                                       "Requests that started with an adapter")};

  const std::array<Counter*, 5> constraints = model.counters<5>(
      "recurve_constraints_total",
      "Constraints of requests, by outcome: compiled, cached, refused, given up "
      "because no request waited any more, or turned away because too many waited",
      "outcome", {"compiled", "cached", "refused", "given_up", "turned_away"});
  Gauge& constraints_waiting =
      model.gauge("recurve_constraints_waiting", "Constraints being compiled or waiting for it");
  Gauge& constraint_bytes = model.gauge("recurve_constraint_bytes", "Memory of cached constraints");
  Histogram& constraint = model.histogram(
      "recurve_constraint_seconds", "Processor time to compile one constraint", kRequestSeconds);

  Histogram& queue = model.histogram(
      "recurve_queue_seconds", "Time from a request's arrival to its first step", kRequestSeconds);
  Histogram& prefill =
      model.histogram("recurve_prefill_seconds",
                      "Time from a request's first step to its first token", kRequestSeconds);
  Histogram& ttft =
      model.histogram("recurve_time_to_first_token_seconds",
                      "Time from a request's arrival to its first token", kRequestSeconds);
  Histogram& inter_token = model.histogram("recurve_inter_token_seconds",
                                           "Time between two tokens of an answer", kTokenSeconds);
  Histogram& decode = model.histogram(
      "recurve_decode_seconds", "Time from a request's first token to its last", kRequestSeconds);
  Histogram& step =
      model.histogram("recurve_step_seconds", "Time of one step of the engine", kTokenSeconds);
  Histogram& rows = model.histogram("recurve_batch_rows", "Tokens in the batch of a step", kRows);

  mutable std::mutex use_mutex;  // of the three below
  SlotCounts slot_counts;
  PageUse page_use;
  SessionTiers session_tiers;
};

ModelMetrics::ModelMetrics(std::shared_ptr<prometheus::Registry> registry, const std::string& model)
    : impl_(std::make_unique<Impl>(std::move(registry), model)) {}
ModelMetrics::~ModelMetrics() = default;

void ModelMetrics::show_uses() const { impl_->show_uses(); }

void ModelMetrics::request_finished(EndReason reason) {
  Counter* const counter = impl_->finished.at(static_cast<size_t>(reason));
  if (counter != nullptr) counter->Increment();
}

void ModelMetrics::set_expected_queue_seconds(double seconds) {
  impl_->expected_queue.Set(seconds);
}

void ModelMetrics::set_waiting(int64_t requests) {
  impl_->waiting.Set(static_cast<double>(requests));
}

void ModelMetrics::add_prompt_tokens(int64_t n) {
  impl_->prompt_tokens.Increment(static_cast<double>(n));
}

void ModelMetrics::add_generated_tokens(int64_t n) {
  impl_->generated_tokens.Increment(static_cast<double>(n));
}

void ModelMetrics::embedded() { impl_->embeddings.Increment(); }

void ModelMetrics::set_slots(const SlotCounts& use) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->slot_counts = use;
}

void ModelMetrics::set_pages(const PageUse& use) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->page_use = use;
}

void ModelMetrics::set_sessions(const SessionTiers& tiers) {
  std::lock_guard lock(impl_->use_mutex);
  impl_->session_tiers = tiers;
}

void ModelMetrics::set_session_host_bytes(int64_t bytes) {
  impl_->session_host_bytes.Set(static_cast<double>(bytes));
}

void ModelMetrics::set_state_dir(const StateDirUse& use) {
  impl_->state_dir_bytes.Set(static_cast<double>(use.bytes));
  impl_->state_dir_set_aside.Set(static_cast<double>(use.set_aside));
  count_up_to(impl_->state_dir_syncs, use.syncs);
  count_up_to(impl_->state_dir_written, use.written);
}

void ModelMetrics::observe_state_dir(int call, double seconds, bool failed) {
  const auto index = static_cast<size_t>(call);
  impl_->state_dir_calls.at(index)->Observe(seconds);
  if (failed) impl_->state_dir_failures.at(index)->Increment();
}

void ModelMetrics::add_prefix(int miss, int64_t tokens, int64_t replayed, int64_t lost) {
  impl_->prefix_prompts.at(static_cast<size_t>(miss))->Increment();
  const std::array counts = {tokens, replayed, lost};
  for (size_t i = 0; i < counts.size(); ++i) {
    impl_->prefix_tokens[i]->Increment(static_cast<double>(counts[i]));
  }
}

void ModelMetrics::add_prefix_store_use(int use) {
  impl_->prefix_store_prompts.at(static_cast<size_t>(use))->Increment();
}

void ModelMetrics::set_prefix_store(int64_t states, int64_t bytes) {
  impl_->prefix_store_states.Set(static_cast<double>(states));
  impl_->prefix_store_bytes.Set(static_cast<double>(bytes));
}

void ModelMetrics::add_prefix_store_bytes(uint64_t written, uint64_t read) {
  impl_->prefix_store_transferred[0]->Increment(static_cast<double>(written));
  impl_->prefix_store_transferred[1]->Increment(static_cast<double>(read));
}

void ModelMetrics::set_prefixes(const PrefixTiers& tiers) {
  impl_->prefix_states.Set(static_cast<double>(tiers.states));
  impl_->prefix_bytes.Set(static_cast<double>(tiers.bytes));
  impl_->prefix_limit.Set(static_cast<double>(tiers.limit));
  impl_->prefix_on_disk.Set(static_cast<double>(tiers.disk_states));
  impl_->prefix_bytes_on_disk.Set(static_cast<double>(tiers.disk_bytes));
}

void ModelMetrics::add_initial_state(const std::string& name) { impl_->initial_states.count(name); }

void ModelMetrics::add_adapter(const std::string& name) { impl_->adapters.count(name); }

void ModelMetrics::set_constraints(const ConstraintUse& use) {
  count_all_up_to(impl_->constraints,
                  {use.compiled, use.from_cache, use.refused, use.given_up, use.turned_away});
  impl_->constraints_waiting.Set(static_cast<double>(use.waiting));
  impl_->constraint_bytes.Set(static_cast<double>(use.cached_bytes));
}

void ModelMetrics::observe_constraint(double seconds) { impl_->constraint.Observe(seconds); }

void ModelMetrics::observe_queue(double seconds) { impl_->queue.Observe(seconds); }

void ModelMetrics::observe_prefill(double seconds) { impl_->prefill.Observe(seconds); }

void ModelMetrics::observe_ttft(double seconds) { impl_->ttft.Observe(seconds); }

void ModelMetrics::observe_inter_token(double seconds) { impl_->inter_token.Observe(seconds); }

void ModelMetrics::observe_decode(double seconds) { impl_->decode.Observe(seconds); }

void ModelMetrics::observe_step(double seconds, int64_t rows) {
  impl_->step.Observe(seconds);
  impl_->rows.Observe(static_cast<double>(rows));
}

}  // namespace recurve
