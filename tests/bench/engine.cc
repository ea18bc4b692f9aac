// recurve-bench engine: streams that decode without end, through the engine and without a server,
// next to the step that it takes at least.
#include <chrono>

#include "tests/bench/commands.h"
#include "tests/bench/engine_streams.h"
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

void run(const EngineBenchOptions& o, bool json) {
  o.model.check("engine");
  const auto backend = o.model.backend();
  const auto model = o.model.load(*backend);
  Report report(json);
  for (const int count : o.streams) {
    const double step =
        StepBench(*model, *backend, count, 1, 1, o.sampling).median_seconds(o.seconds / 2);
    const auto began = Clock::now();
    EngineStreams streams(*model, *backend, o.sampling, count, count);
    const double start = Seconds(Clock::now() - began).count();
    streams.rate(o.seconds / 4);  // prompts, and warm-up
    const double rate = streams.rate(o.seconds);
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
      "engine", "Measure streams through the engine, without a server, next to the step alone");
  add_model_options(*engine, o->model);
  o->sampling.temperature = 0;
  engine->add_option("--temperature", o->sampling.temperature,
                     "Temperature of sampling; 0: greedy");
  engine->add_option("--top-p", o->sampling.top_p,
                     "Sample from the most likely ids with this probability");
  engine->add_option("--streams", o->streams, "Streams at once, e.g. 1,64")->delimiter(',');
  engine->add_option("--seconds", o->seconds, "Time to measure each row; seconds");
  engine->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
