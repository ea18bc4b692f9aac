// recurve-bench tenants: what a light tenant waits for while another always wants more than there
// is, in the engine alone: no frontend, no text and no load generator take the cores.
#include "server/identity/tenants.h"

#include <algorithm>
#include <semaphore>
#include <string>

#include "server/engine/engine.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct TenantsOptions {
  ModelOptions model;
  int slots = 16;
  double step_ms = 30, rate = 5, seconds = 20;
  int prompt = 32, light_tokens = 8, heavy_tokens = 32;
};

// An engine on its thread, of which two tenants have keys.
class TenantsEngine {
 public:
  TenantsEngine(const Model& model, Backend& backend, const TenantsOptions& o)
      : o_(o),
        vocab_(static_cast<int32_t>(model.info().vocab)),
        queue_(4 * o.slots),
        engine_(model, backend, {.rows = vocab_, .usable = vocab_, .eos_ids = {}}, queue_, stats_,
                metrics_,
                {.slots = o.slots,
                 .step_seconds = o.step_ms / 1e3,
                 .pages = pages_for(model, o.slots,
                                    o.prompt + std::max(o.light_tokens, o.heavy_tokens))}),
        thread_([this] { engine_.run(); }) {}
  ~TenantsEngine() {
    engine_.abandon();
    thread_.join();
  }

  std::shared_ptr<TokenStream> ask(TenantId tenant, int tokens,
                                   std::function<void()> on_ready = {}) {
    const auto stream = std::make_shared<TokenStream>();
    if (on_ready) stream->on_ready(std::move(on_ready));
    Request request{.streams = {stream}};
    request.caller.tenant = tenant;
    request.caller.limits.slot_share = kShareOfOne;
    request.prefix = PrefixMode::kOff;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = tokens;
    for (int i = 0; i < o_.prompt; ++i) request.prompt.ids.push_back(++next_id_ % vocab_);
    queue_.push(std::move(request));
    return stream;
  }

 private:
  const TenantsOptions& o_;
  const int32_t vocab_;
  std::atomic<int32_t> next_id_ = 0;
  AdmissionQueue queue_;
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::thread thread_;
};

constexpr TenantId kLight = 1, kHeavy = 2;

// Has twice as many requests under way as there are slots, until it goes.
class Flood {
 public:
  Flood(TenantsEngine& engine, const TenantsOptions& o)
      : thread_([this, &engine, &o](const std::stop_token& stop) {
          std::vector<std::shared_ptr<TokenStream>> streams(static_cast<size_t>(2 * o.slots));
          while (!stop.stop_requested()) {
            for (auto& stream : streams) {
              if (stream != nullptr && !stream->take().ending) continue;
              answers_ += stream != nullptr;
              stream = engine.ask(kHeavy, o.heavy_tokens);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          for (auto& stream : streams) stream->cancel();
        }) {}
  int answers() const { return answers_; }

 private:
  std::atomic<int> answers_ = 0;
  std::jthread thread_;
};

// Of the light tenant's answers, in seconds.
struct Times {
  std::vector<double> first;    // due to first token
  std::vector<double> waited;   // arrival to the first step
  std::vector<double> prefill;  // first step to first token
};

Times ask_light(TenantsEngine& engine, const TenantsOptions& o) {
  Times times;
  const auto period =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / o.rate));
  Clock::time_point due = Clock::now();
  const int asked = static_cast<int>(o.seconds * o.rate);
  for (int i = 0; i < asked; ++i) {
    std::this_thread::sleep_until(due);
    std::counting_semaphore<> news(0);
    const auto stream = engine.ask(kLight, o.light_tokens, [&news] { news.release(); });
    bool begun = false;
    for (TokenStream::Gathered gathered; !gathered.ending;) {
      news.acquire();
      gathered = stream->take();
      if (!begun && !gathered.tokens.empty()) {
        begun = true;
        times.first.push_back(seconds_between(due, Clock::now()));
      }
      if (!gathered.ending) continue;
      times.waited.push_back(gathered.ending->queue_seconds);
      times.prefill.push_back(gathered.ending->prefill_seconds);
    }
    stream->on_ready({});
    due = std::max(due + period, Clock::now());
  }
  return times;
}

void add_row(Report& report, const char* load, const Times& times, double heavy_answers) {
  nlohmann::ordered_json row = {{"bench", "tenants"}, {"load", load}};
  const auto add = [&](const std::string& name, const std::vector<double>& seconds) {
    row[name + "_p50_ms"] = 1e3 * quantile(seconds, 0.5);
    row[name + "_p99_ms"] = 1e3 * quantile(seconds, 0.99);
  };
  add("first_token", times.first);
  add("waited", times.waited);
  add("prefill", times.prefill);
  row["other_answers_per_s"] = heavy_answers;
  report.add(std::move(row));
}

void run(const TenantsOptions& o, bool json) {
  o.model.check("tenants");
  const auto backend = o.model.backend();
  const auto model = o.model.load(*backend);
  Report report(json);
  TenantsEngine engine(*model, *backend, o);
  ask_light(engine, {.rate = o.rate, .seconds = 1});
  add_row(report, "none", ask_light(engine, o), 0);
  Flood flood(engine, o);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const int before = flood.answers();
  const auto began = Clock::now();
  const Times loaded = ask_light(engine, o);
  add_row(report, "flood", loaded,
          (flood.answers() - before) / seconds_between(began, Clock::now()));
}

}  // namespace

void add_tenants(CLI::App& app, const bool& json) {
  auto o = std::make_shared<TenantsOptions>();
  CLI::App* tenants = app.add_subcommand(
      "tenants", "Measure the wait of a light tenant while another floods, without a server");
  add_model_options(*tenants, o->model);
  tenants->add_option("--slots", o->slots, "Slots of the engine");
  tenants->add_option("--step-ms", o->step_ms,
                      "Target time of a step, as --tpot-ms of recurve-server; milliseconds");
  tenants->add_option("--rate", o->rate, "Requests a second of the light tenant");
  tenants->add_option("--seconds", o->seconds, "Time to measure each row; seconds");
  tenants->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
