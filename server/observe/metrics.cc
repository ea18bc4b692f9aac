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
#include <optional>
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

constexpr std::array kRefusalNames = {"too_many", "too_many_of_address", "no_file_left"};
static_assert(kRefusalNames.size() == Metrics::kRefusals);
constexpr std::array<std::array<const char*, 2>, Metrics::kOfTenant> kTenantCounters = {{
    {"recurve_tenant_requests_total", "Requests of a tenant that ended, including refused ones"},
    {"recurve_tenant_refused_total", "Requests of a tenant that were refused or failed"},
    {"recurve_tenant_prompt_tokens_total", "Prompt tokens of a tenant's requests"},
    {"recurve_tenant_generated_tokens_total", "Tokens generated for a tenant"},
}};
constexpr const char* kOtherTenants = "other";

}  // namespace

struct Metrics::Impl {
  Impl(const About& about, std::shared_ptr<Registry> of) : registry(std::move(of)) {
    if (!about.models.empty()) first = about.models.front();
    process
        .gauge_family("recurve_build_info",
                      "1, with the version and the commit of the program as labels")
        .Add({{"version", about.version}, {"commit", about.commit}})
        .Set(1);
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

  const std::shared_ptr<Registry> registry;
  const MetricGroup process{*registry};
  const ProcessMetrics process_metrics{process};

  Counter& requests = process.counter("recurve_requests_total", "Requests received");
  std::array<Counter*, kCodeNames.size()> errors{};  // by Code; null: OK
  Gauge& connections = process.gauge("recurve_connections", "Open client connections");
  const std::array<Counter*, kRefusals> refused =
      process.counters("recurve_connections_refused_total",
                       "Connections closed on arrival, by reason", "reason", kRefusalNames);
  const std::array<Counter*, kFloods.size()> floods = process.counters(
      "recurve_floods_total",
      "Connections ended because the client flooded the server, by kind of flood", "of", kFloods);

  Histogram& text_queue = process.histogram(
      "recurve_text_queue_seconds", "Time from a call's arrival until a thread reads its text",
      kRequestSeconds);
  Histogram& text =
      process.histogram("recurve_text_seconds",
                        "Time to convert a call's text or messages to token ids", kRequestSeconds);
  const std::array<Histogram*, kStoreCalls.size()> store_calls = process.add_series(
      process.histogram_family("recurve_state_store_seconds",
                               "Time of one operation on --state-store: commit a turn of a "
                               "session, or take a session over with its state"),
      "call", kStoreCalls, kTokenSeconds);
  const std::array<Counter*, kStoreCalls.size()> store_failures =
      process.counters("recurve_state_store_failures_total", "Failed operations on --state-store",
                       "call", kStoreCalls);
  const std::array<Counter*, kStoreBytes.size()> store_bytes = process.counters(
      "recurve_state_store_bytes_total", "Bytes of states written to --state-store and read there",
      "direction", kStoreBytes);
  const std::array<Counter*, kSharedTurns.size()> shared_turns = process.counters(
      "recurve_shared_turns_total",
      "Turns of sessions in --state-store: committed, answered from the record of an "
      "earlier one, refused because another server has continued the session, or failed",
      "outcome", kSharedTurns);
  Counter& marks_left = process.counter(
      "recurve_drain_marks_left_total",
      "Marks of the sessions that a drain has moved to --state-store, which could not be moved");
  const std::array<Counter*, 2> spans = process.counters<2>(
      "recurve_trace_spans_total", "Spans of traced calls, by whether the collector accepted them",
      "result", {"sent", "dropped"});
  std::mutex scrape_mutex;
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

  std::optional<std::string> first;  // the name of the first model
  std::mutex models_mutex;
  std::map<std::string, std::shared_ptr<ModelMetrics>> further;  // of the models but the first
};

Metrics::Metrics(const About& about) : Metrics(about, std::make_shared<Registry>()) {}

Metrics::Metrics(const About& about, const std::shared_ptr<Registry>& registry)
    : ModelMetrics(registry, about.models.empty() ? "" : about.models.front()),
      impl_(std::make_unique<Impl>(about, registry)) {
  for (const std::string& name : about.models) of_model(name);
}
Metrics::~Metrics() = default;

std::shared_ptr<ModelMetrics> Metrics::of_model(const std::string& name) {
  if (impl_->first.value_or(name) == name) return {std::shared_ptr<void>(), this};
  std::lock_guard lock(impl_->models_mutex);
  std::shared_ptr<ModelMetrics>& model = impl_->further[name];
  if (model == nullptr) model = std::make_shared<ModelMetrics>(impl_->registry, name);
  return model;
}

void Metrics::remove_model(const std::string& name) {
  std::lock_guard lock(impl_->models_mutex);
  impl_->further.erase(name);
}

void Metrics::request_received() { impl_->requests.Increment(); }

void Metrics::request_failed(Code code) {
  impl_->errors.at(static_cast<size_t>(code))->Increment();
}

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

void Metrics::observe_text(double waited, double worked) {
  impl_->text_queue.Observe(waited);
  impl_->text.Observe(worked);
}

void Metrics::observe_store(StoreCall call, double seconds, bool failed) {
  const auto index = static_cast<size_t>(call);
  impl_->store_calls.at(index)->Observe(seconds);
  if (failed) impl_->store_failures.at(index)->Increment();
}

void Metrics::shared_turn(TurnEnd outcome) {
  impl_->shared_turns.at(static_cast<size_t>(outcome))->Increment();
}

void Metrics::leave_marks(int64_t n) { impl_->marks_left.Increment(static_cast<double>(n)); }

void Metrics::count_store_bytes(StoreBytes direction, uint64_t bytes) {
  impl_->store_bytes.at(static_cast<size_t>(direction))->Increment(static_cast<double>(bytes));
}

void Metrics::add_spans(Spans result, int64_t n) {
  impl_->spans[static_cast<size_t>(result)]->Increment(static_cast<double>(n));
}

std::string Metrics::text() const {
  std::lock_guard lock(impl_->scrape_mutex);
  impl_->process_metrics.update();
  count_up_to(impl_->log_lines, static_cast<int64_t>(log_lines_dropped()));
  show_uses();
  {
    std::lock_guard models_lock(impl_->models_mutex);
    for (const auto& [name, model] : impl_->further) model->show_uses();
  }
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

}  // namespace recurve
