// recurve-bench kernel: every op of a model's step alone, at the shapes the model gives it.
#include "tests/bench/commands.h"
#include "tests/bench/op_bench.h"

namespace recurve::bench {
namespace {

struct KernelOptions {
  ModelOptions model;
  std::vector<int> batch = {1};
  int rows = 1;
  std::vector<std::string> ops;
  double bandwidth = 0;
  double seconds = 0.05;

  bool wants(const std::string& op) const {
    return ops.empty() || std::ranges::find(ops, op) != ops.end();
  }
};

void run(const KernelOptions& o, bool json) {
  o.model.check("kernel");
  const auto inner = make_backend(o.model.device, o.model.threads);
  WatchedBackend backend(*inner);
  const auto model = o.model.load(backend);
  Report report(json);
  for (const int sequences : o.batch) {
    OpBench bench(*model, backend, sequences, o.rows);
    for (const OpCalls& op : bench.ops()) {
      if (!o.wants(op.op)) continue;
      const double time = bench.median_seconds(op, o.seconds);
      nlohmann::ordered_json row{
          {"bench", "kernel"},        {"op", op.op},        {"implementation", op.implementation},
          {"shape", op.shape},        {"batch", sequences}, {"rows", o.rows},
          {"calls", op.calls.size()}, {"ms", time * 1e3},   {"GB_per_s", op.bytes / time / 1e9}};
      if (o.bandwidth > 0) row["percent_of_floor"] = 100 * op.bytes / (o.bandwidth * 1e9) / time;
      report.add(std::move(row));
    }
  }
}

}  // namespace

void add_kernel(CLI::App& app, const bool& json) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* kernel = app.add_subcommand("kernel", "Every op of a model's step, each alone");
  add_model_options(*kernel, options->model);
  kernel->add_option("--ops", options->ops, "Only these, e.g. linear,mlstm")->delimiter(',');
  kernel->add_option("--batch", options->batch, "Sequences, e.g. 1,8,64")->delimiter(',');
  kernel->add_option("--rows", options->rows, "Tokens of each: 1 is a decode, more a prompt")
      ->check(CLI::Range(1, 65536));
  kernel->add_option("--bandwidth", options->bandwidth, "GB/s of the memory, for the floor");
  kernel->add_option("--seconds", options->seconds, "To measure each op for");
  kernel->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
