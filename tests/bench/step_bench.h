#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/check.h"
#include "model/adapters/adapter_rows.h"
#include "model/load_model.h"
#include "server/engine/sampling_table.h"
#include "server/startup/flag_values.h"
#include "tests/bench/report.h"

namespace recurve::bench {

// A model and the device it is on, as the command line names them.
struct ModelOptions {
  std::string config, model;
  bool random = false, bf16_state = false, f32_kv = false, map_weights = false;
  std::string device = "cpu", weights = "auto", head_weights;
  int threads = 0, layers = 0, written_every = 1;
  ActivationType activations = ActivationType::kF32;

  std::unique_ptr<Backend> backend() const { return make_backend(device, threads, activations); }
  void check(const std::string& command) const {
    if (!(random ? config : model).empty()) return;
    throw std::runtime_error(command + ": say --model DIR, or --config FILE with --random");
  }
  // targets: receives those of the model, if not null.
  std::unique_ptr<const Model> load(
      Backend& backend, std::shared_ptr<const AdapterTargets>* targets = nullptr) const {
    Checkpoint checkpoint = random ? random_weights() : Checkpoint::open(model);
    if (map_weights) checkpoint.map_weights();
    if (targets != nullptr) *targets = checkpoint.shared_adapter_targets();
    return load_model(checkpoint, backend,
                      {.weights = WeightFormats::named(weights, head_weights),
                       .state = bf16_state ? DType::kBF16 : DType::kF32,
                       .written_every = written_every,
                       .kv = f32_kv ? DType::kF32 : DType::kBF16});
  }

 private:
  Checkpoint random_weights() const {
    const Checkpoint whole = Checkpoint::random_from(config, 1);
    nlohmann::json values = whole.config();
    if (layers > 0) values["num_hidden_layers"] = layers;
    return Checkpoint::random(values, 1, whole.config_file());
  }
};

// Pages for so many states of so many tokens; none for models whose states do not grow.
inline PageLimits pages_for(const Model& model, int states, int64_t tokens) {
  if (!model.state_layout().grows()) return {};
  return {states * static_cast<int32_t>(StateLayout::pages(tokens)), tokens};
}

inline void add_activations(CLI::App& command, ActivationType& activations) {
  takes_names<ActivationType>(
      command.add_option("--activations", activations,
                         "Narrowest type to which linear layers of the CPU may round their inputs"),
      {{"f32", ActivationType::kF32},
       {"bf16", ActivationType::kBF16},
       {"int8", ActivationType::kInt8}});
}

inline void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.model, "Checkpoint directory");
  command.add_option("--config", options.config, "Use this config.json with random weights");
  command.add_flag("--random", options.random, "Use random weights for --config");
  command.add_option("--layers", options.layers,
                     "Layers of the model with random weights; 0: as many as its config has");
  command.add_option("--device", options.device, "cpu, cuda:N or reference")->capture_default_str();
  command.add_flag("--map-weights", options.map_weights,
                   "Use weights of a packed --model in place, in the mapped files");
  command.add_option("--threads", options.threads,
                     "Threads of the CPU backend; 0: one for each core");
  command.add_option("--weights", options.weights, "Format of the weights: auto, bf16, int8, ...")
      ->capture_default_str();
  command.add_option("--head-weights", options.head_weights,
                     "Format of the embedding and the head; default: as --weights");
  add_activations(command, options.activations);
  command.add_flag("--bf16-state", options.bf16_state, "Store matrix states in bf16");
  command
      .add_option("--written-every", options.written_every,
                  "Tokens from one writing of a matrix state to the next, where kernels "
                  "can do that")
      ->capture_default_str();
  command.add_flag("--f32-kv", options.f32_kv, "Store keys and values of attention in f32");
}

// Sequences that each bring `rows` tokens, all at once or, where rows_per_step is less, so many to
// a step.
class StepBench {
 public:
  // wanted: how each sequence's next token is sampled, which is part of the last step; none: it is
  // not. context: tokens that states of a model with attention have absorbed before, all zeros.
  StepBench(const Model& model, Backend& backend, int sequences, int rows, int rows_per_step,
            std::optional<SamplingParams> wanted, int64_t context = 0)
      : model_(model),
        backend_(backend),
        stream_(backend.make_stream()),
        pool_(
            backend, model.state_layout(), sequences, *stream_, nullptr,
            {sequences * static_cast<int32_t>(StateLayout::pages(context + rows)), context + rows}),
        context_(static_cast<int32_t>(context)),
        arena_(backend,
               model.arena_bytes({.rows = sequences * rows_per_step, .logits = sequences})),
        logits_(backend.allocate(static_cast<size_t>(sequences) *
                                 static_cast<size_t>(model.info().vocab) * sizeof(float))),
        staging_(backend),
        table_(backend, vocab_of(model), sequences, *stream_),
        results_(backend.allocate(static_cast<size_t>(sequences) * sizeof(SampleResult))) {
    SamplingParams sampling = wanted.value_or(SamplingParams());
    sampling.max_tokens = std::numeric_limits<int32_t>::max();
    std::vector<int32_t> slots;
    std::vector<SampleRow> samples;
    for (int s = 0; s < sequences; ++s) {
      slots_.push_back(std::move(*pool_.acquire()));
      slots.push_back(slots_.back().id());
      samples.push_back({.logits = s, .slot = slots.back(), .scored = -1, .top = -1});
      sampling.seed = static_cast<uint64_t>(s);
      table_.begin(slots.back(), sampling, {}, staging_, *stream_);
    }
    pool_.wait_for_copies();
    spread();
    for (const StateSlot& slot : slots_) CHECK(pool_.grow(slot, 0, context + rows));
    table_rows_.resize(pool_.table_words());
    pool_.send_table(table_rows_);
    if (wanted) samples_ = {to_device(samples), samples.size()};
    const int32_t* const slots_there = to_device(slots);
    for (int first = 0; first < rows; first += rows_per_step) {
      const int count = std::min(rows_per_step, rows - first);
      add_step(sequences, count, slots_there, first + count == rows);
    }
  }

  // All steps, from the first op to the last.
  void once() {
    if (pool_.layout().grows()) restart();
    compute();
    stream_->wait();
  }

  // The same again, as what was measured -> seconds.
  double again() {
    double sum = 0;
    for (int i = 0; i < period(); ++i) sum += seconds_of_step();
    return sum / period();
  }

  // Steps from one writing of a state to the next.
  int period() const { return pool_.layout().written_every(); }
  // States that are written once in several rows are so in the same step, all of them.
  void write_together() {
    put_held_rows([](int32_t) { return 0; });
  }

  // From now on sequence s has the adapter of number s, from the first again after the last.
  void set_adapters(const AdapterTargets& targets, std::vector<AdapterPtr> adapters) {
    adapters_ = std::move(adapters);
    adapter_rows_.emplace(targets, backend_, most_rows());
  }

  // The median of what all steps take, which are made for so long, three times at least. Where
  // states are written once in several steps, of the mean of as many. recorded: they are replayed.
  // between: is called before each time, and not counted.
  double median_seconds(
      double seconds, bool recorded = true, const std::function<void()>& between = [] {}) {
    seconds_of_step();  // warm-up
    if (recorded) recording_ = backend_.record([this] { compute(); }, *stream_);
    std::vector<double> times;
    for (double sum = 0; sum < seconds || times.size() < 3; sum += period() * times.back()) {
      between();
      times.push_back(again());
    }
    return median(times);
  }

 private:
  double seconds_of_step() {
    if (pool_.layout().grows()) restart();
    const auto began = std::chrono::steady_clock::now();
    if (recording_ == nullptr) {
      compute();
    } else {
      recording_->replay(*stream_);
    }
    stream_->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  // count: rows next to the state of a sequence.
  template <typename Count>
  void put_held_rows(const Count& count) {
    const auto& arrays = pool_.layout().arrays;
    for (size_t a = 0; a < arrays.size(); ++a) {
      if (arrays[a].values != StateValues::kHeldRows) continue;
      for (const StateSlot& slot : slots_) {
        const int32_t rows = count(slot.id()) % period();
        backend_.upload(pool_.array<int32_t>(a) + slot.id(), &rows, sizeof(rows), *stream_);
        stream_->wait();
      }
    }
  }
  // As sequences of all lengths have them.
  void spread() {
    put_held_rows([](int32_t slot) { return slot; });
  }

  // The states have absorbed what they had at first.
  void restart() {
    const auto& arrays = pool_.layout().arrays;
    for (size_t a = 0; a < arrays.size(); ++a) {
      if (arrays[a].values != StateValues::kPosition) continue;
      for (const StateSlot& slot : slots_) {
        backend_.upload(pool_.array<int32_t>(a) + slot.id(), &context_, sizeof(context_), *stream_);
      }
    }
    stream_->wait();
  }

  static SamplingVocab vocab_of(const Model& model) {
    const auto vocab = static_cast<int32_t>(model.info().vocab);
    return {.rows = vocab, .usable = vocab, .eos_ids = {}};
  }

  // last: it gives logits.
  void add_step(int sequences, int rows, const int32_t* slots, bool last) {
    const int vocab = static_cast<int>(model_.info().vocab);
    std::vector<int32_t> tokens, begin, logit_rows;
    for (int t = 0; t < sequences * rows; ++t) {
      tokens.push_back(static_cast<int32_t>((int64_t{t} * 7919 + 11) % vocab));
    }
    for (int s = 0; s <= sequences; ++s) begin.push_back(s * rows);
    for (int s = 1; last && s <= sequences; ++s) logit_rows.push_back(s * rows - 1);
    batches_.push_back({.seqs = {.num_seqs = sequences,
                                 .rows = sequences * rows,
                                 .max_len = rows,
                                 .begin = to_device(begin),
                                 .slot = slots},
                        .tokens = to_device(tokens),
                        .num_logits = last ? sequences : 0,
                        .logit_rows = last ? to_device(logit_rows) : nullptr});
  }

  void compute() {
    for (const StepBatch& batch : batches_) {
      stream_->set_adapters(adapters_of(batch));
      model_.forward(batch, pool_, arena_, *stream_, logits_.as<float>());
    }
    stream_->set_adapters(nullptr);
    backend_.kernels().sample(
        table_.args(logits_.as<float>(), samples_, results_.as<SampleResult>(), nullptr), *stream_);
  }

  int most_rows() const { return std::ranges::max(batches_, {}, rows_of).seqs.rows; }
  static int rows_of(const StepBatch& batch) { return batch.seqs.rows; }

  const StepAdapters* adapters_of(const StepBatch& batch) {
    if (!adapter_rows_) return nullptr;
    adapter_rows_->clear();
    const int sequences = batch.seqs.num_seqs;
    for (int s = 0; s < sequences; ++s) {
      adapter_rows_->add(adapters_[static_cast<size_t>(s) % adapters_.size()].get(),
                         batch.seqs.rows / sequences);
    }
    return adapter_rows_->step();
  }

  template <typename T>
  const T* to_device(const std::vector<T>& values) {
    inputs_.push_back(backend_.allocate(values.size() * sizeof(T)));
    backend_.upload(inputs_.back().data(), values.data(), inputs_.back().bytes(), *stream_);
    stream_->wait();
    return inputs_.back().as<T>();
  }

  const Model& model_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  StatePool pool_;
  const int32_t context_;
  std::vector<int32_t> table_rows_;
  Arena arena_;
  Buffer logits_;  // (sequences, vocab)
  Staging staging_;
  SamplingTable table_;
  Buffer results_;  // (sequences)
  std::span<const SampleRow> samples_;
  std::vector<Buffer> inputs_;
  std::vector<StateSlot> slots_;
  std::vector<StepBatch> batches_;
  std::vector<AdapterPtr> adapters_;  // none: no row has one
  std::optional<AdapterRows> adapter_rows_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace recurve::bench
