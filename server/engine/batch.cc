#include "server/engine/batch.h"

#include <algorithm>
#include <utility>

#include "server/engine/sampling_table.h"

namespace recurve {

Batch::Batch(Backend& backend, int most_samples, int most_hidden, int64_t width)
    : results_(backend.allocate_host(static_cast<size_t>(most_samples) * sizeof(SampleResult))),
      top_(backend.allocate_host(static_cast<size_t>(most_samples) * kMostTop * sizeof(TopLogit))),
      width_(static_cast<size_t>(width)),
      hidden_(backend.allocate_host(static_cast<size_t>(most_hidden) * width_ * sizeof(float))),
      staging_(backend),
      done_(backend.make_event()) {
  clear();
}

void Batch::clear() {
  inputs_.begin.assign(1, 0);
  for (auto* of : {&inputs_.planned, &inputs_.decodes, &inputs_.tokens, &inputs_.logit_rows,
                   &inputs_.hidden_rows}) {
    of->clear();
  }
  inputs_.samples.clear();
  inputs_.max_len = inputs_.tops = 0;
  inputs_.decodes_only = true;
  members_.clear();
  starting_.clear();
  copies_.clear();
  staging_.reset();
}

void Batch::add(Sequence& sequence, int rows) {
  const int first = this->rows(), first_sample = static_cast<int>(inputs_.samples.size());
  const auto first_hidden = static_cast<int>(inputs_.hidden_rows.size());
  const bool decodes = sequence.decodes();
  if (decodes) {
    inputs_.tokens.push_back(0);  // the device has it
    add_logits(first);
    add_sample(sequence, -1, sequence.request.sampling.logprobs);
  } else {
    add_prompt(sequence, rows);
  }
  inputs_.begin.push_back(first + rows);
  inputs_.planned.push_back(sequence.slot.id());
  inputs_.decodes.push_back(decodes);
  inputs_.max_len = std::max(inputs_.max_len, rows);
  inputs_.decodes_only &= decodes;

  const int samples = static_cast<int>(inputs_.samples.size()) - first_sample;
  const bool sampled = samples > 0 && inputs_.samples.back().scored < 0;
  if (sampled && (!decodes || std::exchange(sequence.sampler_unset, false))) {
    starting_.push_back(&sequence);
  }
  const int hidden = static_cast<int>(inputs_.hidden_rows.size()) - first_hidden;
  members_.push_back({&sequence, rows, first_sample, samples, sampled, first_hidden, hidden});
  sequence.launch(rows, sampled);
}

void Batch::add_prompt(const Sequence& sequence, int rows) {
  const int first = this->rows();
  const PromptPhase& prompt = sequence.prompt;
  const std::span input = std::span(prompt.ids).subspan(prompt.absorbed + prompt.launched);
  const auto count = static_cast<size_t>(rows);
  inputs_.tokens.insert(inputs_.tokens.end(), input.begin(), input.begin() + rows);
  if (sequence.scored()) {  // a row scores the token after it
    for (size_t r = 0; r < count && r + 1 < input.size(); ++r) {
      add_logits(first + static_cast<int>(r));
      add_sample(sequence, input[r + 1], sequence.request.sampling.prompt_logprobs);
    }
  }
  if (const auto pooling = sequence.request.pooling) {
    const int from = *pooling == Pooling::kMean ? 0 : count == input.size() ? rows - 1 : rows;
    for (int r = from; r < rows; ++r) inputs_.hidden_rows.push_back(first + r);
  }
  if (count == input.size() && sequence.request.sampling.max_tokens > 0) {
    add_logits(first + rows - 1);
    add_sample(sequence, -1, sequence.request.sampling.logprobs);
  }
}

// Adds a sample of the row of logits that was added last.
void Batch::add_sample(const Sequence& sequence, int32_t scored, int top) {
  inputs_.samples.push_back({.logits = static_cast<int32_t>(inputs_.logit_rows.size()) - 1,
                             .slot = sequence.slot.id(),
                             .scored = scored,
                             .top = top,
                             .first_top = inputs_.tops});
  inputs_.tops += std::max(top, 0);
}

void Batch::add_choice(const Sequence& sequence, Sequence& choice) {
  members_.push_back({&choice, 0, static_cast<int>(inputs_.samples.size()), 1, true, 0, 0});
  add_sample(choice, -1, choice.request.sampling.logprobs);
  copies_.push_back({&sequence.slot, &choice.slot, choice.position});
  starting_.push_back(&choice);
  choice.launch(0, true);
}

StepShape Batch::shape() const {
  const auto& of = inputs_.decodes;
  const auto decodes = static_cast<int>(std::count(of.begin(), of.end(), 1));
  return {.decodes = decodes, .prompt_rows = rows() - decodes, .prompts_only = prompts_only_};
}

void Batch::remove(const Sequence& sequence) {
  for (Member& member : members_) {
    if (member.sequence == &sequence) member.sequence = nullptr;
  }
}

SampledToken Batch::token(int sample) const {
  const SampleRow& row = inputs_.samples[static_cast<size_t>(sample)];
  const auto* results = reinterpret_cast<const SampleResult*>(results_.get());
  const auto* top = reinterpret_cast<const TopLogit*>(top_.get()) + row.first_top;
  return token_of(results[sample], {top, static_cast<size_t>(std::max(row.top, 0))});
}

std::span<const float> Batch::hidden(const Member& member) const {
  const auto* rows = reinterpret_cast<const float*>(hidden_.get());
  return {rows + static_cast<size_t>(member.first_hidden) * width_,
          static_cast<size_t>(member.hidden) * width_};
}

}  // namespace recurve
