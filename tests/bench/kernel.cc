// recurve-bench kernel: the linear op alone, over matrices that together are larger than any cache.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>

#include "kernels/backend.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"

namespace recurve::bench {
namespace {

struct KernelOptions {
  std::string device = "cpu";
  int threads = 0;
  std::vector<std::string> shapes = {"4096x4096"};
  std::vector<int> rows = {1, 8, 64};
  bool norm = false, swiglu = false;
  double bandwidth = 0;
  double seconds = 0.2;
};

constexpr int64_t kPastCaches = 384 << 20;  // bytes of weights in one pass
constexpr int kOps = 64;                    // at least, in one pass: so its start does not count

struct Shape {
  int64_t N, K;
};
Shape parse(const std::string& text) {
  const size_t x = text.find('x');
  try {
    const Shape shape{std::stoll(text.substr(0, x)), std::stoll(text.substr(x + 1))};
    if (x != std::string::npos && shape.N > 0 && shape.K > 0) return shape;
  } catch (const std::exception&) {
  }
  throw std::runtime_error(
      fmt::format("--shapes wants outputs x inputs (4096x4096), found {}", text));
}

// The op over several matrices in turn, all in one recording.
class LinearBench {
 public:
  LinearBench(Backend& backend, const Shape& shape, int most_rows)
      : backend_(backend),
        shape_(shape),
        stream_(backend.make_stream()),
        matrices_(static_cast<int>(std::max<int64_t>(1, kPastCaches / bytes(shape)))) {
    W_ = random_bf16(backend, shape.N * shape.K * matrices_,
                     1 / std::sqrt(static_cast<float>(shape.K)));
    x_ = random_floats(backend, most_rows * shape.K);
    norm_ = random_floats(backend, shape.K);
    y_ = backend.allocate(sizeof(float) * static_cast<size_t>(most_rows * shape.N));
  }

  void record(int rows, const KernelOptions& o) {
    const auto pass = [this, rows, o] {
      for (int i = 0; i < ops(); ++i) {
        LinearArgs args{.rows = rows,
                        .W = {DType::kBF16, shape_.N, shape_.K,
                              W_.as<uint16_t>() + i % matrices_ * shape_.N * shape_.K},
                        .x = x_.as<float>(),
                        .y = y_.as<float>(),
                        .swiglu = o.swiglu};
        if (o.norm) args.norm = norm_.as<float>();
        backend_.kernels().linear(args, *stream_);
      }
    };
    pass();
    stream_->wait();
    recording_ = backend_.record(pass, *stream_);
  }

  static int64_t bytes(const Shape& shape) { return 2 * shape.N * shape.K; }

  double seconds_of_op() {
    const auto began = std::chrono::steady_clock::now();
    recording_->replay(*stream_);
    stream_->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / ops();
  }

 private:
  int ops() const { return std::max(matrices_, kOps); }

  Buffer random_floats(Backend& backend, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random_);
    return upload(backend, values);
  }
  // A million values over and over: nothing here is as slow as making them.
  Buffer random_bf16(Backend& backend, int64_t count, float deviation) {
    std::vector<uint16_t> made(1 << 20);
    std::normal_distribution<float> normal(0, deviation);
    for (uint16_t& value : made) {
      value = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random_)) >> 16);
    }
    const size_t wanted = static_cast<size_t>(count);
    Buffer buffer = backend.allocate(wanted * sizeof(uint16_t));
    for (size_t i = 0; i < wanted; i += made.size()) {
      backend.upload(buffer.as<uint16_t>() + i, made.data(),
                     std::min(made.size(), wanted - i) * sizeof(uint16_t), *stream_);
    }
    stream_->wait();
    return buffer;
  }
  template <typename T>
  Buffer upload(Backend& backend, const std::vector<T>& values) {
    Buffer buffer = backend.allocate(values.size() * sizeof(T));
    backend.upload(buffer.data(), values.data(), buffer.bytes(), *stream_);
    stream_->wait();
    return buffer;
  }

  Backend& backend_;
  const Shape shape_;
  std::mt19937_64 random_{1};
  std::unique_ptr<Stream> stream_;
  const int matrices_;
  Buffer W_, x_, norm_, y_;
  std::unique_ptr<Recording> recording_;
};

void run(const KernelOptions& o, bool json) {
  const auto backend = make_backend(o.device, o.threads);
  Report report(json);
  for (const std::string& text : o.shapes) {
    const Shape shape = parse(text);
    LinearBench bench(*backend, shape, *std::max_element(o.rows.begin(), o.rows.end()));
    for (const int rows : o.rows) {
      bench.record(rows, o);
      std::vector<double> times;
      for (double sum = 0; sum < o.seconds || times.size() < 5; sum += times.back()) {
        times.push_back(bench.seconds_of_op());
      }
      const double time = median(times), bytes = static_cast<double>(LinearBench::bytes(shape));
      const double operations = 2.0 * rows * static_cast<double>(shape.N * shape.K);
      nlohmann::ordered_json row{{"bench", "linear"},
                                 {"implementation", backend->kernels().linear.implementation},
                                 {"shape", text},
                                 {"rows", rows},
                                 {"us", time * 1e6},
                                 {"GB_per_s", bytes / time / 1e9},
                                 {"TFLOP_per_s", operations / time / 1e12}};
      if (o.bandwidth > 0) row["percent_of_floor"] = 100 * bytes / (o.bandwidth * 1e9) / time;
      report.add(std::move(row));
    }
  }
}

}  // namespace

void add_kernel(CLI::App& app, const bool& json) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* kernel = app.add_subcommand("kernel", "The linear op with weights in bf16");
  kernel->add_option("--device", options->device, "cpu, cuda:N or reference")
      ->capture_default_str();
  kernel->add_option("--threads", options->threads, "Of the CPU backend; 0: one a core");
  kernel->add_option("--shapes", options->shapes, "Outputs x inputs, e.g. 4096x4096,12304x4096")
      ->delimiter(',');
  kernel->add_option("--rows", options->rows, "Of activations, e.g. 1,8,64")->delimiter(',');
  kernel->add_flag("--norm", options->norm, "With a norm of the activations");
  kernel->add_flag("--swiglu", options->swiglu, "With the gate of a feed-forward layer");
  kernel->add_option("--bandwidth", options->bandwidth, "GB/s of the memory, for the floor");
  kernel->add_option("--seconds", options->seconds, "To measure each row for");
  kernel->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
