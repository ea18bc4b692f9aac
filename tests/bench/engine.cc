// recurve-bench engine: streams that decode without end, through the engine and without a server,
// beside the step that it takes at least.
#include "server/engine/engine.h"

#include <chrono>
#include <thread>

#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

using Seconds = std::chrono::duration<double>;

struct EngineBenchOptions {
  ModelOptions model;
  SamplingParams sampling;
  std::vector<int> streams = {1, 8, 32};
  double seconds = 2;
};

// An engine on its thread, and clients that read what they are sent.
class Streams {
 public:
  Streams(const EngineBenchOptions& o, const Model& model, Backend& backend, int count)
      : queue_(count),
        engine_(model, backend,
                {.rows = static_cast<int32_t>(model.info().vocab),
                 .usable = static_cast<int32_t>(model.info().vocab),
                 .eos_ids = {}},
                queue_, stats_, metrics_, {.slots = count, .sessions = {}}) {
    for (int s = 0; s < count; ++s) {
      streams_.push_back(std::make_shared<TokenStream>());
      Request request{.prompt = {s % static_cast<int32_t>(model.info().vocab)},
                      .sampling = o.sampling,
                      .streams = {streams_.back()}};
      request.sampling.seed = static_cast<uint64_t>(s);
      request.sampling.max_tokens = std::numeric_limits<int32_t>::max();
      queue_.push(std::move(request));
    }
    thread_ = std::thread([this] { engine_.run(); });
  }
  ~Streams() {
    engine_.abandon();
    thread_.join();
  }

  // Reads for so long; tokens per second meanwhile.
  double read(double seconds) {
    const auto began = Clock::now();
    const int64_t before = stats_.generated_tokens;
    Seconds passed{0};
    while (passed.count() < seconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (const auto& stream : streams_) stream->take();
      passed = Clock::now() - began;
    }
    return static_cast<double>(stats_.generated_tokens - before) / passed.count();
  }

 private:
  AdmissionQueue queue_;
  EngineStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  std::thread thread_;
};

void run(const EngineBenchOptions& o, bool json) {
  o.model.check("engine");
  const auto backend = make_backend(o.model.device, o.model.threads);
  const auto model = o.model.load(*backend);
  Report report(json);
  for (const int count : o.streams) {
    const double step =
        StepBench(*model, *backend, count, 1, o.sampling).median_seconds(o.seconds / 2);
    const auto began = Clock::now();
    Streams streams(o, *model, *backend, count);
    const double start = Seconds(Clock::now() - began).count();
    streams.read(o.seconds / 4);  // prompts, and warm-up
    const double rate = streams.read(o.seconds);
    report.add({{"bench", "engine"},
                {"device", o.model.device},
                {"streams", count},
                {"start_s", start},
                {"tok_per_s", rate},
                {"step_ms", step * 1e3},
                {"step_tok_per_s", count / step},
                {"percent_of_step", 100 * rate * step / count}});
  }
}

}  // namespace

void add_engine(CLI::App& app, const bool& json) {
  auto o = std::make_shared<EngineBenchOptions>();
  CLI::App* engine = app.add_subcommand(
      "engine", "Streams through the engine, without a server, beside a step alone");
  add_model_options(*engine, o->model);
  o->sampling.temperature = 0;
  engine->add_option("--temperature", o->sampling.temperature, "Of sampling; 0: greedy");
  engine->add_option("--top-p", o->sampling.top_p, "Of sampling");
  engine->add_option("--streams", o->streams, "Streams at once, e.g. 1,64")->delimiter(',');
  engine->add_option("--seconds", o->seconds, "To measure each row for");
  engine->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
