// recurve-bench attention: attention over pages alone, of sessions of any length.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bf16.h"
#include "tests/bench/commands.h"
#include "tests/bench/read_bandwidth.h"
#include "tests/bench/report.h"

namespace recurve::bench {
namespace {

struct AttentionOptions {
  std::string device = "cpu", kv = "bf16";
  int heads = 8, key_heads = 2, channels = 256;
  std::vector<int> context = {4096};
  int rows = 1, sequences = 1, threads = 0;
  double seconds = 0.5, bandwidth = 0;

  DType dtype() const { return kv == "bf16" ? DType::kBF16 : DType::kF32; }
};

// Rows of sessions that have `context` tokens before them, of as many layers as no cache holds:
// each call is of the next layer. Pages are in any order.
class AttendedSessions {
 public:
  AttendedSessions(const AttentionOptions& o, int context, Backend& backend)
      : o_(o),
        context_(context),
        most_((context + o.rows + kPageTokens - 1) / kPageTokens),
        half_(kPageTokens * o.key_heads * o.channels * static_cast<int64_t>(size_of(o.dtype()))),
        layers_(std::max<int64_t>(1, kBytes / (2 * half_ * most_ * o.sequences))),
        backend_(backend),
        stream_(backend.make_stream()) {
    const int rows = o.sequences * o.rows;
    std::vector<int32_t> pages(static_cast<size_t>(o.sequences * most_)), begin, slot, position;
    std::iota(pages.begin(), pages.end(), 1);
    std::ranges::shuffle(pages, random_);
    pages.insert(pages.begin(), static_cast<size_t>(most_), 0);  // of slot 0
    for (int s = 0; s <= o.sequences; ++s) begin.push_back(s * o.rows);
    for (int s = 0; s < o.sequences; ++s) slot.push_back(s + 1);
    for (int row = 0; row < rows; ++row) position.push_back(context + row % o.rows);
    table_ = to_device(pages);
    begin_ = to_device(begin);
    slot_ = to_device(slot);
    position_ = to_device(position);
    q_ = to_device(random_values<float>(int64_t{rows} * o.heads * o.channels));
    o_rows_ = backend.allocate(q_.bytes());
    memory_ = o.dtype() == DType::kBF16 ? to_device(random_values<uint16_t>(stored() / 2))
                                        : to_device(random_values<float>(stored() / 4));
  }

  // Of one call, the median over so many seconds.
  double median_seconds(double seconds) {
    const int64_t calls = std::max(kCalls, layers_);
    const auto recording = backend_.record(
        [this, calls] {
          for (int64_t call = 0; call < calls; ++call) attend(call % layers_);
        },
        *stream_);
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
    return median(times) / static_cast<double>(calls);
  }

  // Keys and values of a layer that have to be read once.
  double bytes() const {
    return 2.0 * static_cast<double>(half_) / kPageTokens * o_.sequences * (context_ + o_.rows);
  }
  // Of products with keys and with values.
  double operations() const {
    const double keys = o_.rows * (context_ + (o_.rows + 1) / 2.0);  // of all rows of a sequence
    return 4.0 * o_.sequences * keys * o_.heads * o_.channels;
  }

 private:
  static constexpr int64_t kBytes = int64_t{256} << 20;
  static constexpr int64_t kCalls = 16;  // of a recording at least: a replay takes microseconds

  int64_t page_bytes() const { return 2 * half_ * layers_; }
  int64_t stored() const { return page_bytes() * (int64_t{most_} * o_.sequences + 1); }

  // About 1: the first are drawn, and the others repeat them.
  template <typename T>
  std::vector<T> random_values(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<T> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      if (i >= kDrawn) {
        values[i] = values[i - kDrawn];
      } else if constexpr (sizeof(T) == 2) {
        values[i] = f32_to_bf16(normal(random_));
      } else {
        values[i] = normal(random_);
      }
    }
    return values;
  }
  static constexpr size_t kDrawn = 65521;

  template <typename T>
  Buffer to_device(const std::vector<T>& values) {
    Buffer buffer = backend_.allocate(values.size() * sizeof(T));
    backend_.upload(buffer.data(), values.data(), buffer.bytes(), *stream_);
    stream_->wait();
    return buffer;
  }

  PagedData paged(int64_t at) const {
    return {.data = memory_.data() + at,
            .dtype = o_.dtype(),
            .page_bytes = page_bytes(),
            .table = table_.as<int32_t>(),
            .most = most_,
            .pages = most_ * o_.sequences + 1};
  }

  void attend(int64_t layer) const {
    backend_.kernels().paged_attention({.seqs = {.num_seqs = o_.sequences,
                                                 .rows = o_.sequences * o_.rows,
                                                 .max_len = o_.rows,
                                                 .begin = begin_.as<int32_t>(),
                                                 .slot = slot_.as<int32_t>()},
                                        .H = o_.heads,
                                        .HK = o_.key_heads,
                                        .D = o_.channels,
                                        .scale = 1 / std::sqrt(static_cast<float>(o_.channels)),
                                        .q_stride = o_.heads * o_.channels,
                                        .q = q_.as<float>(),
                                        .position = position_.as<int32_t>(),
                                        .keys = paged(2 * half_ * layer),
                                        .values = paged(2 * half_ * layer + half_),
                                        .o = o_rows_.as<float>()},
                                       *stream_);
  }

  const AttentionOptions o_;
  const int context_, most_;
  const int64_t half_, layers_;  // half_: bytes of keys, or of values, of a layer in a page
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::mt19937_64 random_{1};
  Buffer table_, begin_, slot_, position_, q_, o_rows_, memory_;
};

void run(const AttentionOptions& o, bool json) {
  const auto backend = make_backend(o.device, o.threads);
  if (backend->kernels().paged_attention.run == nullptr) {
    throw std::runtime_error(backend->name() + " has no kernel for paged_attention");
  }
  std::optional<ReadBandwidth> measured;
  if (o.bandwidth == 0 && !o.device.starts_with("cuda")) measured.emplace(o.threads);
  Report report(json);
  for (const int context : o.context) {
    AttendedSessions sessions(o, context, *backend);
    const double time = sessions.median_seconds(o.seconds);
    const double read = measured ? measured->measure() : o.bandwidth;
    nlohmann::ordered_json row{{"bench", "attention"},
                               {"heads", o.heads},
                               {"key_heads", o.key_heads},
                               {"channels", o.channels},
                               {"kv", o.kv},
                               {"context", context},
                               {"rows", o.rows},
                               {"sequences", o.sequences},
                               {"ms", time * 1e3},
                               {"GFLOP_per_s", sessions.operations() / time / 1e9},
                               {"GB_per_s", sessions.bytes() / time / 1e9}};
    if (read > 0) {
      row["read_GB_per_s"] = read;
      row["percent_of_floor"] = 100 * sessions.bytes() / (read * 1e9) / time;
    }
    report.add(std::move(row));
  }
}

}  // namespace

void add_attention(CLI::App& app, const bool& json) {
  auto options = std::make_shared<AttentionOptions>();
  CLI::App* command = app.add_subcommand("attention", "Measure attention over pages alone");
  const CLI::Range positive(1, 1 << 20);
  command->add_option("--device", options->device, "cpu, cuda:N or reference")
      ->capture_default_str();
  command->add_option("--heads", options->heads, "Heads of queries")
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option("--key-heads", options->key_heads, "Heads of keys and values; divides --heads")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--channels", options->channels, "Channels of a head")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--kv", options->kv, "Type of keys and values")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--context", options->context, "Tokens before the rows, e.g. 512,4096")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--rows", options->rows, "Tokens of each sequence: 1 is a decode, more a prompt")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--sequences", options->sequences, "Sequences in a step")
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads,
                   "Threads of the CPU backend; 0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--bandwidth", options->bandwidth,
                      "Memory bandwidth for the floor; GB/s; 0: measured on a CPU");
  command->add_option("--seconds", options->seconds, "Time to measure each context; seconds")
      ->capture_default_str();
  command->callback([options, &json] {
    if (options->heads % options->key_heads != 0) {
      throw CLI::ValidationError("--key-heads", "must divide --heads");
    }
    run(*options, json);
  });
}

}  // namespace recurve::bench
