// recurve-bench step: one engine step of a model alone, no server: decode at several batch sizes,
// or prompts, in one step or several, and sampling. The floor is what the bytes cost at the
// bandwidth given.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "tests/bench/commands.h"
#include "tests/bench/dense_product.h"
#include "tests/bench/op_bench.h"
#include "tests/bench/product_limits.h"
#include "tests/bench/read_bandwidth.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"
#include "tests/bench/watched_backend.h"
#include "tests/support/adapter_writer.h"
#include "tests/support/temp_dir.h"

#ifdef RECURVE_KERNEL_TRACE
#include <map>
#include <tuple>

#include "kernels/cuda/common/kernel_trace.h"
#endif

namespace recurve::bench {
namespace {

#ifdef RECURVE_KERNEL_TRACE
// The kernels of one step, by how they are launched: how many there are, what one costs and how
// long before it began it was there.
void report_kernel_trace(StepBench& bench, int sequences, Report& report) {
  cuda::clear_kernel_trace();
  bench.again();
  const std::vector<cuda::TracedKernel> stamps = cuda::read_kernel_trace();
  struct Sum {
    int kernels = 0;
    double cost = 0, early = 0;  // ns
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, Sum> sums;
  for (size_t i = 0; i + 1 < stamps.size(); ++i) {
    const cuda::TracedKernel& s = stamps[i];
    Sum& sum = sums[{s.grid_x, s.grid_y, s.threads, s.shared}];
    ++sum.kernels;
    sum.cost += static_cast<double>(stamps[i + 1].began - s.began);
    sum.early += static_cast<double>(s.began - s.came);
  }
  for (const auto& [launch, sum] : sums) {
    const auto& [grid_x, grid_y, threads, shared] = launch;
    report.add({{"bench", "kernel_trace"},
                {"batch", sequences},
                {"grid", fmt::format("{}x{}", grid_x, grid_y)},
                {"threads", threads},
                {"shared", shared},
                {"kernels", sum.kernels},
                {"us", sum.cost / sum.kernels / 1e3},
                {"us_there_before", sum.early / sum.kernels / 1e3},
                {"us_of_step", sum.cost / 1e3}});
  }
}
#endif

struct StepOptions {
  ModelOptions model;
  SamplingParams sampling;
  std::vector<int> batch = {1, 8, 32};
  int rows = 1, rows_per_step = 0, context = 0, adapters = 0, rank = 16;
  bool bf16_adapters = false, together = false;
  bool recorded = true, sampled = true, ops = false, kernel_trace = false;
  double bandwidth = 0;
  double seconds = 1;
};

// What a step's products compute, and what it leaves of its weights alone: experts that no row goes
// to, and on the CPU an embedding of which it reads some rows and which is no head too. (A GPU's
// floors have all of the embedding, in every row that was published.)
struct StepWork {
  double flops = 0, unread = 0;
};
StepWork work_of(const std::vector<OpCall>& calls, bool embeddings) {
  StepWork work;
  std::set<const void*> multiplied;
  for (const OpCall& call : calls) {
    const Product& product = call.cost.product;
    work.flops += 2.0 * product.rows * static_cast<double>(product.N * product.K);
    if (product.rows > 0) multiplied.insert(call.cost.matrix);
  }
  for (const OpCall& call : calls) {
    const bool product = call.cost.product.rows > 0;
    if (!product && !embeddings) continue;
    if (product || !multiplied.contains(call.cost.matrix)) work.unread += call.cost.unread;
  }
  return work;
}

double seconds_of(const std::vector<OpCall>& calls) {
  double sum = 0;
  for (const OpCall& call : calls) sum += call.seconds;
  return sum;
}

// The ops of a step: of so many steps, those of the one that was soonest done.
std::vector<OpCall> ops_of(StepBench& bench, int steps) {
  std::vector<OpCall> best;
  for (int step = 0; step < steps; ++step) {
    auto calls = WatchedBackend::calls_of([&] { bench.once(); });
    if (step == 0 || seconds_of(calls) < seconds_of(best)) best = std::move(calls);
  }
  return best;
}

// What each op takes where it stands in a step, all its calls of the same shape together; longest
// first.
void report_ops(std::vector<OpCall> calls, int sequences, int rows, Report& report) {
  const double all = seconds_of(calls);
  std::vector<OpCalls> ops = by_shape(std::move(calls));
  std::ranges::stable_sort(ops, std::greater(),
                           [](const OpCalls& o) { return seconds_of(o.calls); });
  for (const OpCalls& op : ops) {
    report.add({{"bench", "step_op"},
                {"op", op.op},
                {"implementation", op.implementation},
                {"shape", op.shape},
                {"batch", sequences},
                {"rows", rows},
                {"calls", op.calls.size()},
                {"ms_of_step", seconds_of(op.calls) * 1e3},
                {"percent_of_ops", 100 * seconds_of(op.calls) / all}});
  }
}

// What the linear layers compute in the time of all, in percent of what the instructions of the
// type that they may use can, and, where one was measured, of a dense product.
void add_products(const StepOptions& o, const ProductLimits& limits, double dense, double flops,
                  double time, nlohmann::ordered_json* row) {
  const ActivationType narrowest = o.model.activations;
  const double limit = narrowest == ActivationType::kF32    ? std::max(limits.f32, limits.split_f32)
                       : narrowest == ActivationType::kBF16 ? limits.bf16
                                                            : limits.int8;
  (*row)["linear_GFLOP_per_s"] = flops / time / 1e9;
  if (limit > 0) (*row)["percent_of_products"] = flops / time / 1e7 / limit;
  if (dense == 0) return;
  (*row)["dense_GFLOP_per_s"] = dense;
  (*row)["percent_of_dense"] = flops / time / 1e7 / dense;
}

// Adapters of random values, of all linear layers: the same values in separate memory.
std::vector<AdapterPtr> random_adapters(const StepOptions& o, const AdapterTargets& targets,
                                        Backend& backend) {
  if (o.adapters == 0) return {};
  const TempDir folder;
  AdapterWriter::of_all(targets, o.rank, 1, o.bf16_adapters).write(folder.path());
  std::vector<AdapterPtr> adapters;
  for (int a = 0; a < o.adapters; ++a) {
    adapters.push_back(load_adapter(targets, backend, std::to_string(a), folder.path()));
  }
  return adapters;
}

// What adapters cost: the same steps without them, by turns.
void add_adapters(const StepOptions& o, double time, double without, nlohmann::ordered_json* row) {
  (*row)["adapters"] = o.adapters;
  (*row)["rank"] = o.rank;
  (*row)["adapter_values"] = o.bf16_adapters ? "bf16" : "f32";
  (*row)["ms_without"] = without * 1e3;
  (*row)["percent_longer"] = 100 * (time / without - 1);
}

// What a step reads and writes of a state that does not grow: all of it both, but what is written
// once in several rows, and the rows next to that, of which half are there.
double moved_bytes(const StateLayout& layout) {
  const bool holds_rows = layout.written_every() > 1;
  double sum = 0;
  for (const StateArray& array : layout.arrays) {
    if (array.per_token()) continue;
    const bool row = holds_rows && array.growth == StateGrowth::kRing;
    sum += (row ? 0.5 : 1 + 1.0 / array.written_every) * static_cast<double>(array.bytes());
  }
  return sum;
}

void run(const StepOptions& o, bool json) {
  o.model.check("step");
  const bool on_cpu = o.model.device == "cpu";
  if (o.ops && !on_cpu) throw std::runtime_error("step: --ops is for --device cpu");
  const auto inner = o.model.backend();
  WatchedBackend backend(*inner);
  std::shared_ptr<const AdapterTargets> targets;
  const auto model = o.model.load(backend, &targets);
  const std::vector<AdapterPtr> adapters = random_adapters(o, *targets, backend);
  const StateLayout layout = model->state_layout();
  if (o.context > 0 && !layout.grows()) {
    throw std::runtime_error(
        "step: --context is for models with attention: states of this one have one size");
  }
  const double state = moved_bytes(layout);
  // Keys and values that one step reads: of a prompt, those before it.
  const double read_rows = static_cast<double>(layout.page_bytes()) / kPageTokens * o.context;
  Report report(json);
  const auto bandwidth = on_cpu && o.bandwidth == 0
                             ? std::make_optional<ReadBandwidth>(o.model.threads)
                             : std::nullopt;
  // A decode's products have nothing of it.
  const auto dense_product = on_cpu && o.rows > 1 ? std::make_optional<DenseProduct>(*inner)
                                                  : std::optional<DenseProduct>();
  ProductLimits limits;
  if (on_cpu) {
    limits = product_limits(o.model.threads);
    report.add({{"bench", "product_limits"},
                {"device", "cpu"},
                {"f32_GFLOP_per_s", limits.f32},
                {"split_f32_GFLOP_per_s", limits.split_f32},
                {"bf16_GFLOP_per_s", limits.bf16},
                {"int8_GFLOP_per_s", limits.int8}});
  }
  const int rows_per_step = o.rows_per_step > 0 ? std::min(o.rows_per_step, o.rows) : o.rows;
  for (const int sequences : o.batch) {
    const auto sampling = o.sampled ? std::optional(o.sampling) : std::nullopt;
    StepBench bench(*model, backend, sequences, o.rows, rows_per_step, sampling, o.context);
    if (o.together) bench.write_together();
    std::optional<StepBench> base;
    if (!adapters.empty()) {
      base.emplace(*model, backend, sequences, o.rows, rows_per_step, sampling, o.context);
      bench.set_adapters(*targets, adapters);
    }
    double read = bandwidth ? bandwidth->measure() : o.bandwidth;
    // Others may use the same units: so it is measured by turns with the steps.
    std::vector<double> dense, without;
    const double time = bench.median_seconds(o.seconds, o.recorded, [&] {
      if (dense_product) dense.push_back(dense_product->measure());
      if (base) without.push_back(base->again());
    });
    if (bandwidth) read = std::max(read, bandwidth->measure());
    std::vector<OpCall> ops = ops_of(bench, o.ops ? 3 : 1);
    const StepWork work = work_of(ops, on_cpu);
    const double bytes = static_cast<double>(model->info().weight_bytes) - work.unread +
                         (state + read_rows) * static_cast<double>(sequences);
    nlohmann::ordered_json row{{"bench", "step"},
                               {"device", o.model.device},
                               {"weights", o.model.weights},
                               {"activations", name_of(o.model.activations)},
                               {"batch", sequences},
                               {"rows", o.rows},
                               {"rows_per_step", rows_per_step},
                               {"context", o.context},
                               {"state", o.model.bf16_state ? "bf16" : "f32"},
                               {"written_every", bench.period()},
                               {"ms", time * 1e3},
                               {"tok_per_s", sequences * o.rows / time},
                               {"GB_per_s", bytes / time / 1e9}};
    if (bandwidth) row["read_GB_per_s"] = read;
    if (read > 0) row["percent_of_floor"] = 100 * bytes / (read * 1e9) / time;
    if (on_cpu) add_products(o, limits, dense.empty() ? 0 : median(dense), work.flops, time, &row);
    if (base) add_adapters(o, time, median(without), &row);
    report.add(std::move(row));
    if (o.ops) report_ops(std::move(ops), sequences, o.rows, report);
#ifdef RECURVE_KERNEL_TRACE
    if (o.kernel_trace) report_kernel_trace(bench, sequences, report);
#endif
  }
}

}  // namespace

void add_step(CLI::App& app, const bool& json) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* step = app.add_subcommand("step", "Measure a step of a model, without a server");
  add_model_options(*step, options->model);
  options->sampling.temperature = 0;
  step->add_option("--temperature", options->sampling.temperature,
                   "Temperature of sampling; 0: greedy");
  step->add_option("--top-p", options->sampling.top_p,
                   "Sample from the most likely ids with this probability");
  step->add_flag("!--no-sampling", options->sampled, "Compute logits only");
  step->add_option("--top-k", options->sampling.top_k, "Sample from this many most likely ids");
  step->add_option("--batch", options->batch, "Sequences, e.g. 1,8,64")->delimiter(',');
  step->add_option("--rows", options->rows, "Tokens of each sequence: 1 is a decode, more a prompt")
      ->check(CLI::Range(1, 65536));
  step->add_option(
          "--rows-per-step", options->rows_per_step,
          "Rows of a sequence in one step, as recurve-server's flag of this name; the figures "
          "are of all its steps; 0: all")
      ->check(CLI::NonNegativeNumber);
  step->add_option("--context", options->context,
                   "Tokens that the states have absorbed before, of a model with attention")
      ->check(CLI::Range(0, 1 << 20));
  step->add_option("--adapters", options->adapters,
                   "LoRA adapters, of all linear layers, that the sequences have in turn; the same "
                   "steps without them are measured by turns")
      ->check(CLI::Range(0, 4096));
  step->add_option("--rank", options->rank, "Rank of --adapters")
      ->check(CLI::Range(int64_t{1}, kMostLoraRank))
      ->capture_default_str();
  step->add_flag("--bf16-adapters", options->bf16_adapters, "Store --adapters in bf16, not in f32");
  step->add_flag("--together", options->together,
                 "States that are written once in several steps are so in the same one, as of "
                 "sequences that began together; otherwise as of sequences of all lengths");
  step->add_flag("--ops", options->ops, "Also print the time of each op within the step; cpu only");
  step->add_flag("!--no-graph", options->recorded, "Launch every op instead of a CUDA graph");
#ifdef RECURVE_KERNEL_TRACE
  step->add_flag("--kernel-trace", options->kernel_trace,
                 "Also print the time of each kernel within the step");
#endif
  step->add_option("--bandwidth", options->bandwidth,
                   "Memory bandwidth for the floor; GB/s; default on a CPU: measured");
  step->add_option("--seconds", options->seconds, "Time to measure each row; seconds");
  step->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
