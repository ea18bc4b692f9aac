#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/engine/sampling_table.h"

namespace recurve::testing {

// Samples single rows as the engine does: through its table and the kernel of a device.
class RowSampler {
 public:
  explicit RowSampler(SamplingVocab vocab, const std::string& device = "reference")
      : backend_(make_backend(device)),
        stream_(backend_->make_stream()),
        staging_(*backend_),
        table_(*backend_, vocab, kSlot, *stream_),
        logits_(backend_->allocate(static_cast<size_t>(vocab.rows) * sizeof(float))),
        row_(backend_->allocate(sizeof(SampleRow))),
        result_(backend_->allocate(sizeof(SampleResult))),
        top_(backend_->allocate(kMaxLogprobs * sizeof(TopLogit))) {}

  // logits: (vocab.rows). index: how many tokens the answer has before this one.
  SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                      const TokenHistory& history, int64_t index) {
    table_.begin(kSlot, params, history, staging_, *stream_);
    const SampleProgress before{.token = 0, .generated = static_cast<int32_t>(index), .ended = 0};
    backend_->upload(table_.progress() + kSlot, &before, sizeof before, *stream_);
    return run(logits, {.logits = 0, .slot = kSlot, .scored = -1, .top = params.logprobs});
  }
  SampledToken score(std::span<const float> logits, int32_t id, int top) {
    return run(logits, {.logits = 0, .slot = 0, .scored = id, .top = top});
  }
  // Of the slot, after sample().
  SampleProgress progress() {
    SampleProgress progress;
    backend_->download(&progress, table_.progress() + kSlot, sizeof progress, *stream_);
    stream_->wait();
    return progress;
  }

 private:
  static constexpr int32_t kSlot = 1;

  SampledToken run(std::span<const float> logits, const SampleRow& row) {
    backend_->upload(logits_.data(), logits.data(), logits.size_bytes(), *stream_);
    backend_->upload(row_.data(), &row, sizeof row, *stream_);
    backend_->kernels().sample(table_.args(logits_.as<float>(), {row_.as<SampleRow>(), 1},
                                           result_.as<SampleResult>(), top_.as<TopLogit>()),
                               *stream_);
    SampleResult result;
    std::vector<TopLogit> top(static_cast<size_t>(std::max(row.top, 0)));
    backend_->download(&result, result_.data(), sizeof result, *stream_);
    backend_->download(top.data(), top_.data(), top.size() * sizeof(TopLogit), *stream_);
    stream_->wait();
    staging_.reset();
    return token_of(result, top);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Staging staging_;
  SamplingTable table_;
  Buffer logits_, row_, result_, top_;
};

}  // namespace recurve::testing
