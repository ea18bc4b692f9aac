// recurve-bench recurrence: a recurrence alone, over a prompt of any shape, as its papers and
// libraries time it.
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
  int heads = 16, keys = 128, values = 256;  // of states that are a matrix a head
  int key_heads = 0;                         // of delta_rule; 0: as many as heads
  int channels = 2560;                       // of states that are a number a channel
  int tokens = 65536, sequences = 1, chunk = 64;
  double bandwidth = 0, seconds = 0.5;

  int rows() const { return sequences * tokens; }
  int heads_of_keys() const { return key_heads > 0 ? key_heads : heads; }
};
using Options = RecurrenceOptions;

// What a cell reads and writes, all on the device.
struct Call {
  const Options& o;
  Ragged seqs;
  const float* in;          // (rows, width)
  const int32_t* position;  // (rows)
  float* state;             // (sequences + 1, state)
  float* out;               // (rows, out)
};

struct Cell {
  const char* name;
  int (*width)(const Options&);  // floats of a row of what is read
  int (*gates)(const Options&);  // the last of these, which are log decays
  int (*used)(const Options&);   // floats that have to be read and written once for a row
  int (*out)(const Options&);
  int (*state)(const Options&);
  void (*run)(const Kernels&, const Call&, Stream&);
  void (*shape)(const Options&, float* row) = nullptr;  // what makes a random row one of the cell
};

// A row of a state that is a matrix a head: queries, keys, values, and gates.
int qkv(const Options& o) { return o.heads * (2 * o.keys + o.values); }
int head_gates(const Options& o) { return 4 * o.heads; }
int key_gates(const Options& o) { return o.heads * o.keys; }
template <auto kGates>
int with_gates(const Options& o) {
  return qkv(o) + kGates(o);
}
template <int kGates>
int used_of_heads(const Options& o) {
  return 2 * o.heads * (o.keys + o.values) + kGates * o.heads;
}
int head_outputs(const Options& o) { return o.heads * o.values; }
int matrix(const Options& o) { return o.heads * o.keys * o.values; }
int mlstm_state(const Options& o) { return matrix(o) + o.heads * (o.keys + 1); }
int used_of_keys(const Options& o) { return used_of_heads<0>(o) + key_gates(o); }

void run_mlstm(const Kernels& kernels, const Call& call, Stream& stream) {
  const Options& o = call.o;
  const int64_t slots = o.sequences + 1;
  const float* gates = call.in + qkv(o);
  float* n = call.state + slots * matrix(o);
  kernels.mlstm({.seqs = call.seqs,
                 .H = o.heads,
                 .DK = o.keys,
                 .DV = o.values,
                 .chunk = o.chunk,
                 .gate_soft_cap = 15,
                 .eps = 1e-6f,
                 .stride = with_gates<head_gates>(o),
                 .q = call.in,
                 .k = call.in + o.heads * o.keys,
                 .v = call.in + 2 * o.heads * o.keys,
                 .i = gates,
                 .f = gates + o.heads,
                 .C = call.state,
                 .n = n,
                 .m = n + slots * o.heads * o.keys,
                 .h = call.out},
                stream);
}

template <GlaDecay kDecay, bool kInputGate>
void run_gla(const Kernels& kernels, const Call& call, Stream& stream) {
  const Options& o = call.o;
  const float* gates = call.in + qkv(o);
  const int stride =
      kDecay == GlaDecay::kChannel ? with_gates<key_gates>(o) : with_gates<head_gates>(o);
  kernels.gla({.seqs = call.seqs,
               .H = o.heads,
               .DK = o.keys,
               .DV = o.values,
               .chunk = o.chunk,
               .decay = kDecay,
               .scale = 1 / std::sqrt(static_cast<float>(o.keys)),
               .eps = 0,
               .bounded = false,
               .q_stride = stride,
               .k_stride = stride,
               .v_stride = stride,
               .g_stride = stride,
               .q = call.in,
               .k = call.in + o.heads * o.keys,
               .v = call.in + 2 * o.heads * o.keys,
               .g = gates,
               .i = kInputGate ? gates + o.heads : nullptr,
               .S = call.state,
               .z = nullptr,
               .o = call.out},
              stream);
}

// A row of the delta rule: queries, keys, values, log decays, and beta.
int delta_values(const Options& o) { return 2 * o.heads_of_keys() * o.keys + o.heads * o.values; }
int delta_gates(const Options& o) { return 2 * o.heads; }
int delta_row(const Options& o) { return delta_values(o) + delta_gates(o); }
int used_of_delta(const Options& o) { return delta_row(o) + head_outputs(o); }
// Keys have the length 1, and beta is between 0 and 1.
void shape_delta_row(const Options& o, float* row) {
  for (int head = 0; head < o.heads_of_keys(); ++head) {
    float* key = row + (o.heads_of_keys() + head) * o.keys;
    double squares = 0;
    for (int a = 0; a < o.keys; ++a) squares += double{key[a]} * key[a];
    for (int a = 0; a < o.keys; ++a) key[a] /= static_cast<float>(std::sqrt(squares));
  }
  float* beta = row + delta_values(o) + o.heads;
  for (int head = 0; head < o.heads; ++head) beta[head] = std::exp(10 * beta[head]);
}
void run_delta_rule(const Kernels& kernels, const Call& call, Stream& stream) {
  const Options& o = call.o;
  const int HK = o.heads_of_keys(), stride = delta_row(o);
  const float* gates = call.in + delta_values(o);
  kernels.delta_rule({.seqs = call.seqs,
                      .H = o.heads,
                      .HK = HK,
                      .DK = o.keys,
                      .DV = o.values,
                      .chunk = o.chunk,
                      .decay = DeltaDecay::kToken,
                      .scale = 1 / std::sqrt(static_cast<float>(o.keys)),
                      .q_stride = stride,
                      .k_stride = stride,
                      .v_stride = stride,
                      .g_stride = stride,
                      .beta_stride = stride,
                      .q = call.in,
                      .k = call.in + HK * o.keys,
                      .v = call.in + 2 * HK * o.keys,
                      .g = gates,
                      .beta = gates + o.heads,
                      .S = call.state,
                      .o = call.out,
                      .bounded_beta = true},
                     stream);
}

// A state of a number a channel.
int channels(const Options& o) { return o.channels; }
template <int kFloats>
int of_channels(const Options& o) {
  return kFloats * o.channels;
}

// The arrays of the op lie one behind the other.
void run_rg_lru(const Kernels& kernels, const Call& call, Stream& stream) {
  const int64_t array = int64_t{call.seqs.rows} * call.o.channels;
  kernels.rg_lru({.seqs = call.seqs,
                  .D = call.o.channels,
                  .chunk = call.o.chunk,
                  .branch_stride = call.o.channels,
                  .u = call.in,
                  .i = call.in + array,
                  .r = call.in + 2 * array,
                  .branch = call.in + 3 * array,
                  .rate = call.in + 4 * array,
                  .position = call.position,
                  .h = call.state,
                  .y = call.out},
                 stream);
}

void run_linear_recurrence(const Kernels& kernels, const Call& call, Stream& stream) {
  const int D = call.o.channels;
  kernels.linear_recurrence({.seqs = call.seqs,
                             .D = D,
                             .chunk = call.o.chunk,
                             .c_stride = 2 * D,
                             .x_stride = 2 * D,
                             .c = call.in + D,
                             .x = call.in,
                             .state = call.state,
                             .y = call.out},
                            stream);
}

constexpr auto kHeadGates = with_gates<head_gates>, kKeyGates = with_gates<key_gates>;
constexpr Cell kCells[] = {
    {"mlstm", kHeadGates, head_gates, used_of_heads<2>, head_outputs, mlstm_state, run_mlstm},
    {"mlstm_sig", kHeadGates, head_gates, used_of_heads<2>, head_outputs, matrix,
     run_gla<GlaDecay::kToken, true>},
    {"simple_gla", kHeadGates, head_gates, used_of_heads<1>, head_outputs, matrix,
     run_gla<GlaDecay::kToken, false>},
    {"gla", kKeyGates, key_gates, used_of_keys, head_outputs, matrix,
     run_gla<GlaDecay::kChannel, false>},
    {"delta_rule", delta_row, delta_gates, used_of_delta, head_outputs, matrix, run_delta_rule,
     shape_delta_row},
    {"rg_lru", of_channels<4>, of_channels<0>, of_channels<5>, channels, channels, run_rg_lru},
    {"linear_recurrence", of_channels<2>, channels, of_channels<3>, channels, channels,
     run_linear_recurrence},
};

const Cell& cell_named(const std::string& name) {
  return *std::ranges::find_if(kCells, [&](const Cell& cell) { return name == cell.name; });
}
std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Cell& cell : kCells) all.emplace_back(cell.name);
  return all;
}

// A prompt of random rows: values about 1, and log decays about -0.1, as gates of trained models
// make them. A row of log decays follows, for what only one cell has.
class Prompt {
 public:
  Prompt(const Options& o, const Cell& cell, Backend& backend)
      : o_(o),
        cell_(cell),
        backend_(backend),
        stream_(backend.make_stream()),
        in_(backend.allocate(floats(o.rows() + 1, cell.width(o)))),
        out_(backend.allocate(floats(o.rows(), cell.out(o)))),
        states_(backend.allocate(floats(o.sequences + 1, cell.state(o)))),
        begin_(backend.allocate(sizeof(int32_t) *
                                static_cast<size_t>(2 * (o.sequences + 1) + o.rows()))) {
    fill_rows();
    std::vector<int32_t> begin;
    for (int s = 0; s <= o.sequences; ++s) begin.push_back(s * o.tokens);
    for (int s = 0; s <= o.sequences; ++s) begin.push_back(s + 1);
    for (int row = 0; row < o.rows(); ++row) begin.push_back(row % o.tokens);
    backend.upload(begin_.data(), begin.data(), begin_.bytes(), *stream_);
    stream_->wait();
  }

  void absorb() {
    const int slots = o_.sequences + 1;
    const auto* begin = begin_.as<int32_t>();
    const Ragged seqs{.num_seqs = o_.sequences,
                      .rows = o_.rows(),
                      .max_len = o_.tokens,
                      .begin = begin,
                      .slot = begin + slots};
    cell_.run(backend_.kernels(),
              {.o = o_,
               .seqs = seqs,
               .in = in_.as<float>(),
               .position = begin + 2 * slots,
               .state = states_.as<float>(),
               .out = out_.as<float>()},
              *stream_);
  }

  // Seconds of a prompt, the median over so many.
  double median_seconds(double seconds) {
    backend_.zero(states_.data(), states_.bytes(), *stream_);
    const auto recording = backend_.record([&] { absorb(); }, *stream_);
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

  // What has to be read and written once.
  double bytes() const { return static_cast<double>(floats(o_.rows(), cell_.used(o_))); }

 private:
  static size_t floats(int rows, int width) {
    return sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(width);
  }

  // Random rows, and the same again behind them.
  void fill_rows() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    const auto log_decay = [&] { return -0.1f * std::fabs(normal(random)); };
    const auto width = static_cast<size_t>(cell_.width(o_));
    const size_t values = width - static_cast<size_t>(cell_.gates(o_));
    const int some = std::min(o_.rows(), 1024);
    std::vector<float> rows(static_cast<size_t>(some) * width), last(width);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = i % width < values ? normal(random) : log_decay();
    }
    for (int row = 0; cell_.shape != nullptr && row < some; ++row) {
      cell_.shape(o_, &rows[static_cast<size_t>(row) * width]);
    }
    std::ranges::generate(last, log_decay);
    const auto upload = [&](int row, const std::vector<float>& from, int count) {
      backend_.upload(in_.as<float>() + int64_t{row} * cell_.width(o_), from.data(),
                      floats(count, cell_.width(o_)), *stream_);
    };
    for (int row = 0; row < o_.rows(); row += some) {
      upload(row, rows, std::min(some, o_.rows() - row));
    }
    upload(o_.rows(), last, 1);
    stream_->wait();
  }

  const Options o_;
  const Cell& cell_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  Buffer in_, out_, states_, begin_;
};

void run(const Options& o, bool json) {
  const auto backend = make_backend(o.device, 0);
  Report report(json);
  for (const std::string& name : o.cells) {
    const Cell& cell = cell_named(name);
    Prompt prompt(o, cell, *backend);
    const double time = prompt.median_seconds(o.seconds);
    nlohmann::ordered_json row{{"bench", "recurrence"}, {"cell", name}};
    if (cell.state == channels) {
      row["channels"] = o.channels;
    } else {
      row.update({{"heads", o.heads}, {"keys", o.keys}, {"values", o.values}});
    }
    row.update({{"sequences", o.sequences},
                {"tokens", o.tokens},
                {"chunk", o.chunk},
                {"ms", time * 1e3},
                {"GB_per_s", prompt.bytes() / time / 1e9}});
    if (o.bandwidth > 0) {
      row["percent_of_floor"] = 100 * prompt.bytes() / (o.bandwidth * 1e9) / time;
    }
    report.add(std::move(row));
  }
}

}  // namespace

void add_recurrence(CLI::App& app, const bool& json) {
  auto options = std::make_shared<RecurrenceOptions>();
  CLI::App* command = app.add_subcommand("recurrence", "Measure a recurrence alone, over a prompt");
  command->add_option("--device", options->device, "cpu, cuda:N or reference")
      ->capture_default_str();
  command->add_option("--cells", options->cells, "Recurrences, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(names()))
      ->capture_default_str();
  const CLI::Range positive(1, 1 << 20);
  command->add_option("--heads", options->heads, "Heads")->check(positive)->capture_default_str();
  command
      ->add_option("--key-heads", options->key_heads,
                   "Heads of queries and keys, for delta_rule; 0: as many as heads")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--keys", options->keys, "Keys of a head")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--values", options->values, "Values of a head")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--channels", options->channels, "Channels, for rg_lru and linear_recurrence")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Tokens of each sequence")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--sequences", options->sequences, "Sequences in a step")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Rows of a chunk")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--bandwidth", options->bandwidth, "Memory bandwidth for the floor; GB/s");
  command->add_option("--seconds", options->seconds, "Time to measure each recurrence; seconds");
  command->callback([options, &json] { run(*options, json); });
}

}  // namespace recurve::bench
