#include "server/engine/batch.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

size_t input_bytes(const StepBounds& bounds, int slots) {
  return sizeof(int32_t) * static_cast<size_t>(bounds.rows + (slots + 1) + slots + bounds.logits);
}

size_t logits_count(const StepBounds& bounds, const Model& model) {
  return static_cast<size_t>(bounds.logits) * static_cast<size_t>(model.info().vocab);
}

}  // namespace

Batch::Batch(const Model& model, Backend& backend, Stream& stream, const StepBounds& bounds,
             int slots)
    : model_(model),
      backend_(backend),
      stream_(stream),
      begin_(1, 0),
      arena_(backend, model.arena_bytes({.rows = bounds.rows, .logits = bounds.logits})),
      device_input_(backend.allocate(input_bytes(bounds, slots))),
      device_logits_(backend.allocate(sizeof(float) * logits_count(bounds, model))),
      logits_(logits_count(bounds, model)) {}

void Batch::clear() {
  members_.clear();
  tokens_.clear();
  begin_.assign(1, 0);
  slots_.clear();
  logit_rows_.clear();
  max_len_ = 0;
}

void Batch::add(Sequence& sequence, int rows) {
  const int first = this->rows();
  const auto from = sequence.input.begin() + static_cast<ptrdiff_t>(sequence.absorbed);
  tokens_.insert(tokens_.end(), from, from + rows);
  begin_.push_back(first + rows);
  slots_.push_back(sequence.slot.id());
  max_len_ = std::max(max_len_, rows);

  members_.push_back({&sequence, rows, static_cast<int>(logit_rows_.size())});
  if (sequence.scored()) {
    for (int r = 0; r < rows; ++r) logit_rows_.push_back(first + r);
  } else if (rows == sequence.left() && sequence.sampling.max_tokens > 0) {
    logit_rows_.push_back(first + rows - 1);
  }
}

void Batch::forward(const StatePool& pool) {
  int32_t* device = device_input_.as<int32_t>();
  const auto place = [&](const std::vector<int32_t>& values) {
    backend_.upload(device, values.data(), values.size() * sizeof(int32_t), stream_);
    return std::exchange(device, device + values.size());
  };
  const StepBatch batch{.seqs = {.num_seqs = static_cast<int>(members_.size()),
                                 .rows = rows(),
                                 .max_len = max_len_,
                                 .begin = place(begin_),
                                 .slot = place(slots_)},
                        .tokens = place(tokens_),
                        .num_logits = static_cast<int>(logit_rows_.size()),
                        .logit_rows = place(logit_rows_)};
  model_.forward(batch, pool, arena_, stream_, device_logits_.as<float>());
  const size_t bytes =
      logit_rows_.size() * static_cast<size_t>(model_.info().vocab) * sizeof(float);
  backend_.download(logits_.data(), device_logits_.data(), bytes, stream_);
  stream_.wait();
}

std::span<const float> Batch::logits(int row) const {
  const auto vocab = static_cast<size_t>(model_.info().vocab);
  return {logits_.data() + static_cast<size_t>(row) * vocab, vocab};
}

}  // namespace recurve
