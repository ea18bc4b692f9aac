#include "server/engine/step_runner.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

constexpr size_t kRowWords = sizeof(SampleRow) / sizeof(int32_t);
static_assert(sizeof(SampleRow) == kRowWords * sizeof(int32_t));
static_assert(alignof(SampleRow) == alignof(int32_t));

std::vector<int> recorded_sizes(int slots) {
  std::vector<int> sizes;
  for (int size = 1; size < slots; size < 8 ? size *= 2 : size += 8) sizes.push_back(size);
  sizes.push_back(slots);
  return sizes;
}

size_t times(int count, size_t bytes) { return static_cast<size_t>(count) * bytes; }

}  // namespace

StepRunner::StepRunner(const Model& model, Backend& backend, Stream& stream, StatePool& pool,
                       const SamplingVocab& vocab, const StepBounds& bounds,
                       const AdapterTargets* targets)
    : model_(model),
      backend_(backend),
      stream_(stream),
      pool_(pool),
      arena_(backend, model.arena_bytes({.rows = bounds.rows, .logits = bounds.logits})),
      table_(backend, vocab, pool.slots(), stream),
      most_{pool.slots(),
            bounds.rows,
            bounds.rows,
            bounds.logits,
            bounds.logits + pool.slots(),
            model.info().width > 0 ? bounds.rows : 0},
      inputs_(backend.allocate(words_of(most_) * sizeof(int32_t))),
      slots_(backend.allocate(times(most_.seqs, sizeof(int32_t)))),
      logits_(backend.allocate(times(most_.logits, sizeof(float)) *
                               static_cast<size_t>(model.info().vocab))),
      hidden_(backend.allocate(times(most_.hidden, sizeof(float)) *
                               static_cast<size_t>(model.info().width))),
      results_(backend.allocate(times(most_.samples, sizeof(SampleResult)))),
      top_(backend.allocate(times(most_.samples, kMostTop * sizeof(TopLogit)))) {
  if (targets != nullptr) adapters_.emplace(*targets, backend, most_.rows);
}

size_t StepRunner::words_of(const Shape& shape) {
  const int words = 3 * shape.seqs + 1 + shape.rows + shape.logits + shape.hidden;
  return static_cast<size_t>(words) + times(shape.samples, kRowWords);
}

StepRunner::Layout StepRunner::layout(int32_t* memory, const Shape& shape) {
  const auto take = [&](int words) { return std::exchange(memory, memory + words); };
  Layout at{};
  at.begin = take(shape.seqs + 1);
  at.planned = take(shape.seqs);
  at.decodes = take(shape.seqs);
  at.tokens = take(shape.rows);
  at.logit_rows = take(shape.logits);
  at.hidden_rows = take(shape.hidden);
  at.samples = reinterpret_cast<SampleRow*>(memory);
  return at;
}

void StepRunner::record(const std::function<void(int done, int total)>& progress) {
  const std::vector<int> sizes = recorded_sizes(pool_.slots());
  Staging staging(backend_);
  int done = 0;
  for (const int size : sizes) {
    const Shape shape = shape_of_decodes(size);
    upload({}, shape, staging);  // all of it padding
    compute(shape);              // once before it is recorded: kernels set themselves up
    recorded_[size] = backend_.record([this, shape] { compute(shape); }, stream_);
    stream_.wait();
    staging.reset();
    if (progress) progress(++done, static_cast<int>(sizes.size()));
  }
}

void StepRunner::run_largest() {
  compute(most_);
  if (!adapters_) return;
  stream_.set_adapters(adapters_->largest(most_.rows));
  compute(most_);
  stream_.set_adapters(nullptr);
}

void StepRunner::launch(Batch& batch) {
  batch.set_launched(Clock::now());
  if (pool_.layout().grows()) {
    pool_.send_table(batch.staging().take<int32_t>(pool_.table_words()));
  }
  begin_answers(batch);
  for (const Batch::Member& member : batch.members()) {
    const Sequence& sequence = *member.sequence;
    if (!member.sampled || sequence.guide == nullptr) continue;
    table_.allow(sequence.slot.id(), sequence.guide->mask(), batch.staging(), stream_);
  }
  const StepInputs& inputs = batch.inputs();
  const StepAdapters* const adapters = adapters_of(batch);
  const bool replays = inputs.decodes_only && adapters == nullptr;
  const auto recorded = replays ? recorded_.lower_bound(inputs.num_seqs()) : recorded_.end();
  if (recorded != recorded_.end()) {
    upload(inputs, shape_of_decodes(recorded->first), batch.staging());
    recorded->second->replay(stream_);
  } else {
    const Shape shape{.seqs = inputs.num_seqs(),
                      .rows = inputs.rows(),
                      .max_len = inputs.max_len,
                      .logits = static_cast<int>(inputs.logit_rows.size()),
                      .samples = static_cast<int>(inputs.samples.size()),
                      .hidden = static_cast<int>(inputs.hidden_rows.size())};
    upload(inputs, shape, batch.staging());
    stream_.set_adapters(adapters);
    compute(shape);
    stream_.set_adapters(nullptr);
  }
  for (const Batch::Copy& copy : batch.copies()) pool_.copy(*copy.from, *copy.to, copy.tokens);
  download(batch);
  batch.done().record(stream_);
}

// Null if no row has an adapter.
const StepAdapters* StepRunner::adapters_of(const Batch& batch) {
  if (adapters_) adapters_->clear();
  for (const Batch::Member& member : batch.members()) {
    const Adapter* const adapter = member.sequence->request.adapter.get();
    CHECK(adapters_ || adapter == nullptr);
    if (adapters_) adapters_->add(adapter, member.rows);
  }
  return adapters_ ? adapters_->step() : nullptr;
}

void StepRunner::begin_answers(Batch& batch) {
  for (const Sequence* sequence : batch.starting()) {
    const DecodePhase& decode = sequence->decode;
    SampleProgress progress = {};
    if (!sequence->in_prompt()) {
      progress.token = decode.token;
      progress.generated = static_cast<int32_t>(decode.generated);
    }
    TokenHistory history;
    if (has_penalties(sequence->request.sampling)) {
      history = sequence->in_prompt() ? sequence->context_history() : sequence->history;
    }
    table_.begin(sequence->slot.id(), sequence->request.sampling, history, batch.staging(), stream_,
                 progress);
  }
}

// Uploads the inputs, with padding where the shape is larger: sequences in slot 0 that decode,
// whose answer has ended.
void StepRunner::upload(const StepInputs& inputs, const Shape& shape, Staging& staging) {
  const std::span<int32_t> staged = staging.take<int32_t>(words_of(shape));
  const auto to = layout(staged.data(), shape);
  to.begin[0] = 0;
  if (!inputs.begin.empty()) std::ranges::copy(inputs.begin, to.begin);
  std::ranges::copy(inputs.planned, to.planned);
  std::ranges::copy(inputs.decodes, to.decodes);
  std::ranges::copy(inputs.tokens, to.tokens);
  std::ranges::copy(inputs.logit_rows, to.logit_rows);
  std::ranges::copy(inputs.hidden_rows, to.hidden_rows);
  std::ranges::copy(inputs.samples, to.samples);
  for (int i = inputs.num_seqs(); i < shape.seqs; ++i) {
    to.begin[i + 1] = i + 1;
    to.planned[i] = 0;
    to.decodes[i] = 1;
    to.tokens[i] = 0;
    to.logit_rows[i] = i;
    to.samples[i] = {.logits = i, .slot = 0, .scored = -1, .top = -1, .first_top = 0};
  }
  backend_.upload(inputs_.data(), staged.data(), staged.size_bytes(), stream_);
}

void StepRunner::compute(const Shape& shape) {
  const auto in = layout(inputs_.as<int32_t>(), shape);
  backend_.kernels().take_tokens({.num_seqs = shape.seqs,
                                  .begin = in.begin,
                                  .planned = in.planned,
                                  .decodes = in.decodes,
                                  .progress = table_.progress(),
                                  .slot = slots_.as<int32_t>(),
                                  .tokens = in.tokens},
                                 stream_);
  model_.forward({.seqs = {.num_seqs = shape.seqs,
                           .rows = shape.rows,
                           .max_len = shape.max_len,
                           .begin = in.begin,
                           .slot = slots_.as<int32_t>()},
                  .tokens = in.tokens,
                  .num_logits = shape.logits,
                  .logit_rows = in.logit_rows,
                  .num_hidden = shape.hidden,
                  .hidden_rows = in.hidden_rows,
                  .hidden = hidden_.as<float>()},
                 pool_, arena_, stream_, logits_.as<float>());
  backend_.kernels().sample(
      table_.args(logits_.as<float>(), {in.samples, static_cast<size_t>(shape.samples)},
                  results_.as<SampleResult>(), top_.as<TopLogit>()),
      stream_);
}

void StepRunner::download(Batch& batch) {
  const StepInputs& inputs = batch.inputs();
  backend_.download(batch.results(), results_.data(), inputs.samples.size() * sizeof(SampleResult),
                    stream_);
  backend_.download(batch.top(), top_.data(), times(inputs.tops, sizeof(TopLogit)), stream_);
  if (inputs.hidden_rows.empty()) return;
  const size_t row = static_cast<size_t>(model_.info().width) * sizeof(float);
  backend_.download(batch.hidden(), hidden_.data(), inputs.hidden_rows.size() * row, stream_);
}

}  // namespace recurve
