// recurve-bench recurrence: a recurrence whose state is a matrix a head, alone, over a prompt of
// any number of heads of any shape, as its papers and libraries time it.
#include <chrono>
#include <cmath>
#include <random>

#include "tests/bench/commands.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct RecurrenceOptions {
  std::string device = "cuda:0";
  std::vector<std::string> cells = {"mlstm", "mlstm_sig", "simple_gla", "gla"};
  int heads = 16, keys = 128, values = 256;
  int tokens = 65536, sequences = 1, chunk = 64;
  double bandwidth = 0, seconds = 0.5;

  int rows() const { return sequences * tokens; }
  // Floats of a row: queries, keys, values, gates, with room for a gate a key channel.
  int width() const { return heads * (3 * keys + values + 4); }
  int gates() const { return heads * (2 * keys + values); }
};

// A prompt of random rows: queries, keys and values about 1, and log decays about -0.1, as gates of
// trained models make them.
class Prompt {
 public:
  Prompt(const RecurrenceOptions& o, Backend& backend)
      : o_(o),
        backend_(backend),
        stream_(backend.make_stream()),
        rows_(backend.allocate(floats(o.rows(), o.width()))),
        o_rows_(backend.allocate(floats(o.rows(), o.heads * o.values))),
        states_(backend.allocate(floats(o.sequences + 1, o.heads * (o.keys * (o.values + 1) + 1)))),
        begin_(backend.allocate(2 * sizeof(int32_t) * static_cast<size_t>(o.sequences + 1))) {
    fill_rows();
    std::vector<int32_t> places;
    for (int s = 0; s <= o.sequences; ++s) places.push_back(s * o.tokens);
    for (int s = 0; s <= o.sequences; ++s) places.push_back(s + 1);
    backend.upload(begin_.data(), places.data(), begin_.bytes(), *stream_);
    stream_->wait();
  }

  void absorb(const std::string& cell) {
    const float* x = rows_.as<float>();
    const int slots = o_.sequences + 1, heads = o_.heads;
    auto* S = states_.as<float>();
    float* n = S + int64_t{slots} * heads * o_.keys * o_.values;
    float* m = n + int64_t{slots} * heads * o_.keys;
    const Ragged seqs{.num_seqs = o_.sequences,
                      .rows = o_.rows(),
                      .max_len = o_.tokens,
                      .begin = begin_.as<int32_t>(),
                      .slot = begin_.as<int32_t>() + slots};
    const float *q = x, *k = q + heads * o_.keys, *v = k + heads * o_.keys, *g = x + o_.gates();
    if (cell == "mlstm") {
      return backend_.kernels().mlstm({.seqs = seqs,
                                       .H = heads,
                                       .DK = o_.keys,
                                       .DV = o_.values,
                                       .chunk = o_.chunk,
                                       .gate_soft_cap = 15,
                                       .eps = 1e-6f,
                                       .stride = o_.width(),
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .i = g,
                                       .f = g + heads,
                                       .C = S,
                                       .n = n,
                                       .m = m,
                                       .h = o_rows_.as<float>()},
                                      *stream_);
    }
    const bool channels = cell == "gla", sigmoid = cell == "mlstm_sig";
    if (!channels && !sigmoid && cell != "simple_gla") throw std::runtime_error("no cell " + cell);
    backend_.kernels().gla({.seqs = seqs,
                            .H = heads,
                            .DK = o_.keys,
                            .DV = o_.values,
                            .chunk = o_.chunk,
                            .decay = channels ? GlaDecay::kChannel : GlaDecay::kToken,
                            .scale = 1 / std::sqrt(static_cast<float>(o_.keys)),
                            .eps = 0,
                            .bounded = false,
                            .q_stride = o_.width(),
                            .k_stride = o_.width(),
                            .v_stride = o_.width(),
                            .g_stride = o_.width(),
                            .q = q,
                            .k = k,
                            .v = v,
                            .g = g,
                            .i = sigmoid ? g + heads : nullptr,
                            .S = S,
                            .z = nullptr,
                            .o = o_rows_.as<float>()},
                           *stream_);
  }

  // Seconds of a prompt, the median over so many.
  double median_seconds(const std::string& cell, double seconds) {
    backend_.zero(states_.data(), states_.bytes(), *stream_);
    const auto recording = backend_.record([&] { absorb(cell); }, *stream_);
    const auto replay = [&] {
      const auto began = std::chrono::steady_clock::now();
      recording->replay(*stream_);
      stream_->wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    replay();  // warm-up
    std::vector<double> times;
    for (double sum = 0; sum < seconds || times.size() < 3; sum += times.back()) {
      times.push_back(replay());
    }
    return median(times);
  }

  // What has to be read and written once: rows and outputs.
  double bytes(const std::string& cell) const {
    const int gates = cell == "gla"          ? o_.heads * o_.keys
                      : cell == "simple_gla" ? o_.heads
                                             : 2 * o_.heads;
    return static_cast<double>(floats(o_.rows(), o_.heads * 2 * (o_.keys + o_.values) + gates));
  }

 private:
  static size_t floats(int rows, int width) {
    return sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(width);
  }

  // Random rows, and the same again behind them.
  void fill_rows() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    const int some = std::min(o_.rows(), 1024);
    std::vector<float> rows(static_cast<size_t>(some) * static_cast<size_t>(o_.width()));
    for (size_t i = 0; i < rows.size(); ++i) {
      const float value = normal(random);
      const bool gate = static_cast<int>(i % static_cast<size_t>(o_.width())) >= o_.gates();
      rows[i] = gate ? -0.1f * std::fabs(value) : value;
    }
    for (int row = 0; row < o_.rows(); row += some) {
      backend_.upload(rows_.as<float>() + int64_t{row} * o_.width(), rows.data(),
                      floats(std::min(some, o_.rows() - row), o_.width()), *stream_);
    }
    stream_->wait();
  }

  const RecurrenceOptions o_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  Buffer rows_, o_rows_, states_, begin_;
};

void run(const RecurrenceOptions& o, bool json) {
  const auto backend = make_backend(o.device, 0);
  Prompt prompt(o, *backend);
  Report report(json);
  for (const std::string& cell : o.cells) {
    const double time = prompt.median_seconds(cell, o.seconds);
    nlohmann::ordered_json row{
        {"bench", "recurrence"}, {"cell", cell},
        {"heads", o.heads},      {"keys", o.keys},
        {"values", o.values},    {"sequences", o.sequences},
        {"tokens", o.tokens},    {"chunk", o.chunk},
        {"ms", time * 1e3},      {"GB_per_s", prompt.bytes(cell) / time / 1e9}};
    if (o.bandwidth > 0) {
      row["percent_of_floor"] = 100 * prompt.bytes(cell) / (o.bandwidth * 1e9) / time;
    }
    report.add(std::move(row));
  }
}

}  // namespace

void add_recurrence(CLI::App& app, const bool& json) {
  auto options = std::make_shared<RecurrenceOptions>();
  CLI::App* command = app.add_subcommand(
      "recurrence", "A recurrence whose state is a matrix, alone, over a prompt");
  command->add_option("--device", options->device, "cpu, cuda:N or reference")
      ->capture_default_str();
  command->add_option("--cells", options->cells, "Of mlstm, mlstm_sig, simple_gla and gla")
      ->delimiter(',')
      ->check(CLI::IsMember({"mlstm", "mlstm_sig", "simple_gla", "gla"}));
  const CLI::Range positive(1, 1 << 20);
  command->add_option("--heads", options->heads, "Heads")->check(positive)->capture_default_str();
  command->add_option("--keys", options->keys, "Of a head")->check(positive)->capture_default_str();
  command->add_option("--values", options->values, "Of a head")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Of each sequence")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--sequences", options->sequences, "At once")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Rows of a chunk")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--bandwidth", options->bandwidth, "GB/s of the memory, for the floor");
  command->add_option("--seconds", options->seconds, "To measure each for");
  command->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
