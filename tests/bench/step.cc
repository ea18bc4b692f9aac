// recurve-bench step: one engine step of a model alone, no server: decode at several batch sizes,
// or prompts. The floor is what the bytes cost at the bandwidth given.
#include <fmt/format.h>

#include <chrono>
#include <numeric>

#include "model/registry.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"

namespace recurve::bench {
namespace {

struct StepOptions {
  std::string config, model;
  bool random = false, bf16_state = false;
  std::string device = "cpu";
  int threads = 0;
  std::vector<int> batch = {1, 8, 32};
  int rows = 1;
  bool recorded = true;
  double bandwidth = 0;
  double seconds = 1;
};

std::unique_ptr<const Model> load(const StepOptions& o, Backend& backend) {
  Checkpoint checkpoint =
      o.random ? Checkpoint::random_from(o.config, 1) : Checkpoint::open(o.model);
  return load_model(checkpoint, backend, {.state = o.bf16_state ? DType::kBF16 : DType::kF32});
}

// Sequences that each bring `rows` tokens to every step.
class StepBench {
 public:
  StepBench(const Model& model, Backend& backend, int sequences, int rows)
      : model_(model),
        stream_(backend.make_stream()),
        pool_(backend, model.state_layout(), sequences, *stream_),
        arena_(backend, model.arena_bytes({.rows = sequences * rows, .logits = sequences})),
        logits_(backend.allocate(static_cast<size_t>(sequences) *
                                 static_cast<size_t>(model.info().vocab) * sizeof(float))) {
    std::vector<int32_t> tokens, slots, begin, logit_rows;
    for (int t = 0; t < sequences * rows; ++t) {
      tokens.push_back(static_cast<int32_t>((int64_t{t} * 7919 + 11) % model.info().vocab));
    }
    for (int s = 0; s < sequences; ++s) {
      slots_.push_back(std::move(*pool_.acquire()));
      slots.push_back(slots_.back().id());
      begin.push_back(s * rows);
      logit_rows.push_back((s + 1) * rows - 1);
    }
    begin.push_back(sequences * rows);
    batch_ = {.seqs = {.num_seqs = sequences,
                       .rows = sequences * rows,
                       .max_len = rows,
                       .begin = to_device(backend, begin),
                       .slot = to_device(backend, slots)},
              .tokens = to_device(backend, tokens),
              .num_logits = sequences,
              .logit_rows = to_device(backend, logit_rows)};
  }

  double seconds_of_step() {
    const auto began = std::chrono::steady_clock::now();
    if (recording_ == nullptr) {
      forward();
    } else {
      recording_->replay(*stream_);
    }
    stream_->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  // From now on steps are replayed. One has been computed before.
  void record(Backend& backend) {
    recording_ = backend.record([this] { forward(); }, *stream_);
  }

 private:
  void forward() { model_.forward(batch_, pool_, arena_, *stream_, logits_.as<float>()); }

  const int32_t* to_device(Backend& backend, const std::vector<int32_t>& values) {
    inputs_.push_back(backend.allocate(values.size() * sizeof(int32_t)));
    backend.upload(inputs_.back().data(), values.data(), inputs_.back().bytes(), *stream_);
    stream_->wait();
    return inputs_.back().as<int32_t>();
  }

  const Model& model_;
  std::unique_ptr<Stream> stream_;
  StatePool pool_;
  Arena arena_;
  Buffer logits_;  // (sequences, vocab)
  std::vector<Buffer> inputs_;
  std::vector<StateSlot> slots_;
  StepBatch batch_;
  std::unique_ptr<Recording> recording_;
};

void run(const StepOptions& o, bool json) {
  if (o.random ? o.config.empty() : o.model.empty()) {
    throw std::runtime_error("step: say --model DIR, or --config FILE with --random");
  }
  const auto backend = make_backend(o.device, o.threads);
  const auto model = load(o, *backend);
  const double state = static_cast<double>(model->state_layout().bytes());
  Report report(json);
  for (const int sequences : o.batch) {
    StepBench bench(*model, *backend, sequences, o.rows);
    bench.seconds_of_step();  // warm-up
    if (o.recorded) bench.record(*backend);
    std::vector<double> times;
    for (double sum = 0; sum < o.seconds || times.size() < 3; sum += times.back()) {
      times.push_back(bench.seconds_of_step());
    }
    const double bytes = static_cast<double>(model->info().weight_bytes) +
                         2 * state * static_cast<double>(sequences);
    const double time = median(times);
    nlohmann::ordered_json row{{"bench", "step"},
                               {"device", o.device},
                               {"batch", sequences},
                               {"rows", o.rows},
                               {"state", o.bf16_state ? "bf16" : "f32"},
                               {"ms", time * 1e3},
                               {"tok_per_s", sequences * o.rows / time},
                               {"GB_per_s", bytes / time / 1e9}};
    if (o.bandwidth > 0) row["percent_of_floor"] = 100 * bytes / (o.bandwidth * 1e9) / time;
    report.add(std::move(row));
  }
}

}  // namespace

void add_step(CLI::App& app, const bool& json) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* step = app.add_subcommand("step", "One step of a model, without a server");
  step->add_option("--model", options->model, "Checkpoint directory");
  step->add_option("--config", options->config,
                   "config.json of a model to fill with random weights");
  step->add_flag("--random", options->random, "Random weights for --config");
  step->add_option("--device", options->device, "cpu, cuda:N or reference")->capture_default_str();
  step->add_option("--threads", options->threads, "Of the CPU backend; 0: one a core");
  step->add_option("--batch", options->batch, "Sequences, e.g. 1,8,64")->delimiter(',');
  step->add_option("--rows", options->rows, "Tokens of each: 1 is a decode, more a prompt")
      ->check(CLI::Range(1, 65536));
  step->add_flag("!--no-graph", options->recorded, "Queue every op anew instead of a CUDA graph");
  step->add_flag("--bf16-state", options->bf16_state, "States that are matrices in bf16");
  step->add_option("--bandwidth", options->bandwidth, "GB/s of the memory, for the floor");
  step->add_option("--seconds", options->seconds, "To measure each row for");
  step->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
