// recurve-bench kernel: every op of a model's step alone, at the shapes the model gives it.
#if RECURVE_CUBLASLT
#include <dlfcn.h>
#endif

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
  bool cublaslt = false;

  bool wants(const std::string& op) const {
    return ops.empty() || std::ranges::find(ops, op) != ops.end();
  }
};

#if RECURVE_CUBLASLT
// For a product of matrices: its rate, and how long cuBLASLt takes for it in this run.
void add_cublaslt(nlohmann::ordered_json& row, const Product& product, double seconds,
                  double least) {
  using Seconds = double (*)(const Product*, double);
  static void* const library = dlopen(RECURVE_CUBLASLT_LIBRARY, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  static const auto peer = reinterpret_cast<Seconds>(dlsym(library, "recurve_cublaslt_seconds"));
  const double operations = 2.0 * static_cast<double>(product.rows * product.N * product.K);
  const double peer_seconds = peer(&product, least);
  row["TFLOP_per_s"] = operations / seconds / 1e12;
  row["cublaslt_ms"] = peer_seconds * 1e3;
  row["percent_of_cublaslt"] = 100 * peer_seconds / seconds;
}
#endif

void run(const KernelOptions& o, bool json) {
  o.model.check("kernel");
  const auto inner = o.model.backend();
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
#if RECURVE_CUBLASLT
      if (o.cublaslt && op.product.rows > 0) add_cublaslt(row, op.product, time, o.seconds);
#endif
      report.add(std::move(row));
    }
  }
}

}  // namespace

void add_kernel(CLI::App& app, const bool& json) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* kernel = app.add_subcommand("kernel", "Measure every op of a model's step alone");
  add_model_options(*kernel, options->model);
  kernel->add_option("--ops", options->ops, "Measure only these ops, e.g. linear,mlstm")
      ->delimiter(',');
  kernel->add_option("--batch", options->batch, "Sequences, e.g. 1,8,64")->delimiter(',');
  kernel
      ->add_option("--rows", options->rows, "Tokens of each sequence: 1 is a decode, more a prompt")
      ->check(CLI::Range(1, 65536));
  kernel->add_option("--bandwidth", options->bandwidth, "Memory bandwidth for the floor; GB/s");
  kernel->add_option("--seconds", options->seconds, "Time to measure each op; seconds");
#if RECURVE_CUBLASLT
  kernel->add_flag("--cublaslt", options->cublaslt,
                   "Also measure cuBLASLt's time for products of matrices, on the first GPU");
#endif
  kernel->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
