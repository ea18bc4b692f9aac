#pragma once
#include <algorithm>

#include "tests/bench/step_bench.h"
#include "tests/bench/watched_backend.h"

namespace recurve::bench {

// All calls of one op on one shape in a step.
struct OpCalls {
  std::string op, implementation, shape;
  double bytes = 0;  // of a call
  Product product;
  std::vector<OpCall> calls;
};

// Calls of the same op and shape together, in the order in which the first of each was made.
inline std::vector<OpCalls> by_shape(std::vector<OpCall> calls) {
  std::vector<OpCalls> ops;
  for (OpCall& call : calls) {
    const auto same = std::ranges::find_if(
        ops, [&](const OpCalls& o) { return o.op == call.op && o.shape == call.cost.shape; });
    OpCalls& of = same != ops.end()
                      ? *same
                      : ops.emplace_back(OpCalls{.op = call.op,
                                                 .implementation = call.implementation,
                                                 .shape = call.cost.shape,
                                                 .bytes = call.cost.bytes,
                                                 .product = call.cost.product});
    of.calls.push_back(std::move(call));
  }
  return ops;
}

// The ops that are no part of a model's own step: the engine's take_tokens, linear_recurrence,
// which no family calls, and lora, with an adapter for all rows; at the model's number of sequences
// and rows.
class OtherOps {
 public:
  OtherOps(Backend& backend, int sequences, int rows) : backend_(backend), rows_(rows) {
    std::vector<int32_t> begin{0}, slot;
    for (int s = 0; s < sequences; ++s) {
      begin.push_back(begin.back() + rows);
      slot.push_back(s + 1);
    }
    begin_ = to_device(begin);
    slot_ = to_device(slot);
    seqs_ = {.num_seqs = sequences,
             .rows = sequences * rows,
             .max_len = rows,
             .begin = begin_.as<int32_t>(),
             .slot = slot_.as<int32_t>()};
    const auto all = static_cast<size_t>(seqs_.rows), slots = static_cast<size_t>(sequences) + 1;
    progress_ = backend.allocate(slots * sizeof(SampleProgress));
    ids_ = backend.allocate((all + 2 * slots) * sizeof(int32_t));
    floats_ = backend.allocate((3 * all + slots + 2 * kRank) * kWidth * sizeof(float));
    const float* A = floats_.as<float>() + (3 * all + slots) * kWidth;
    part_ = {.r = kRank, .N = kWidth, .A = A, .B = A + kRank * kWidth};
    for (int32_t row = 0; row < seqs_.rows; ++row) lora_rows_.push_back(row);
    lora_ = {.layers = {&parts_, 1}, .rows = lora_rows_};
  }

  void run(Stream& stream) const {
    int32_t* decodes = ids_.as<int32_t>();  // zeros
    backend_.kernels().take_tokens({.num_seqs = seqs_.num_seqs,
                                    .begin = seqs_.begin,
                                    .planned = seqs_.slot,
                                    .decodes = decodes,
                                    .progress = progress_.as<SampleProgress>(),
                                    .slot = decodes + seqs_.num_seqs,
                                    .tokens = decodes + 2 * seqs_.num_seqs},
                                   stream);
    float* c = floats_.as<float>();
    const int64_t width = int64_t{kWidth} * seqs_.rows;
    backend_.kernels().linear_recurrence({.seqs = seqs_,
                                          .D = kWidth,
                                          .chunk = rows_,
                                          .c_stride = kWidth,
                                          .x_stride = kWidth,
                                          .c = c,
                                          .x = c + width,
                                          .state = c + 3 * width,
                                          .y = c + 2 * width},
                                         stream);
    backend_.kernels().lora(
        {.layer = 0, .K = kWidth, .N = kWidth, .groups = {&lora_, 1}, .x = c, .y = c + 2 * width},
        stream);
  }

 private:
  static constexpr int kWidth = 4096, kRank = 16;

  Buffer to_device(const std::vector<int32_t>& values) {
    const auto stream = backend_.make_stream();
    Buffer buffer = backend_.allocate(values.size() * sizeof(int32_t));
    backend_.upload(buffer.data(), values.data(), buffer.bytes(), *stream);
    stream->wait();
    return buffer;
  }

  Backend& backend_;
  const int rows_;
  Buffer begin_, slot_, progress_, ids_, floats_;
  Ragged seqs_;
  LoraPart part_;
  std::vector<int32_t> lora_rows_;
  const std::span<const LoraPart> parts_{&part_, 1};  // of the one layer
  LoraRows lora_;
};

// The ops of a step, each alone.
class OpBench {
 public:
  OpBench(const Model& model, WatchedBackend& backend, int sequences, int rows)
      : backend_(backend),
        stream_(backend.make_stream()),
        step_(model, backend, sequences, rows, rows, SamplingParams{.temperature = 0}),
        others_(backend, sequences, rows) {}

  std::vector<OpCalls> ops() {
    return by_shape(WatchedBackend::calls_of([this] {
      step_.once();
      others_.run(*stream_);
      stream_->wait();
    }));
  }

  // Of one call, the median over so many seconds. The calls are made in turn, so that the weights
  // and states of one layer are read when those of the others have been.
  double median_seconds(const OpCalls& op, double seconds) {
    step_.once();  // the ids, places and numbers of experts that it reads are those of a step
    const int count = std::max(static_cast<int>(op.calls.size()), backend_.queues() ? kCalls : 1);
    const auto pass = [&] {
      for (int i = 0; i < count; ++i) {
        op.calls[static_cast<size_t>(i) % op.calls.size()].run(*stream_);
      }
    };
    const auto recording = backend_.record(pass, *stream_);
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
    return median(times) / count;
  }

 private:
  static constexpr int kCalls = 64;  // in one recording, at least: so that its start counts little

  WatchedBackend& backend_;
  std::unique_ptr<Stream> stream_;
  StepBench step_;
  OtherOps others_;
};

}  // namespace recurve::bench
