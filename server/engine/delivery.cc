#include "server/engine/delivery.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace recurve {

void Delivery::deliver(const Batch& batch) {
  for (const Batch::Member& member : batch.members()) {
    if (member.sequence == nullptr) continue;
    Sequence& sequence = *member.sequence;
    const int scored = member.scored();
    const bool in_prompt = sequence.in_prompt();
    if (in_prompt) {
      stats_.prompt_tokens += member.rows;
      metrics_.add_prompt_tokens(member.rows);
    }
    sequence.absorb(member.rows, member.sampled);
    if (in_prompt && !member.sampled && sequence.request.report_progress) {
      sequence.stream().push_progress(static_cast<int64_t>(sequence.prompt.absorbed));
    }
    if (scored > 0 && !score_prompt(sequence, batch, member.first_sample, scored)) continue;
    if (member.hidden > 0 && !pool(sequence, batch.hidden(member), member.hidden)) continue;
    if (member.sampled) {
      deliver_token(sequence, batch.token(member.first_sample + scored));
    } else if (sequence.prompt.is_absorbed()) {
      sequence.end(EndReason::kLength);  // max_tokens is 0
    }
  }
}

// False if the model has failed.
bool Delivery::score_prompt(Sequence& sequence, const Batch& batch, int first, int count) {
  std::vector<SampledToken> scored;
  for (int s = first; s < first + count && sequence.error == nullptr; ++s) {
    scored.push_back(batch.token(s));
    sequence.error = scored.back().error;
  }
  if (failed(sequence)) return false;
  sequence.stream().push_prompt(std::move(scored));
  return true;
}

// Adds rows of the last hidden state to the sequence's embedding. False if the model has failed.
bool Delivery::pool(Sequence& sequence, std::span<const float> hidden, int rows) {
  if (!std::ranges::all_of(hidden, [](float value) { return std::isfinite(value); })) {
    sequence.error = "the model's hidden state is not finite: its weights or its prompt are broken";
  }
  if (failed(sequence)) return false;
  sequence.pooled.add(hidden, rows);
  return true;
}

// Ends the sequence if the model has failed.
bool Delivery::failed(Sequence& sequence) {
  if (sequence.error == nullptr) return false;
  sequence.leaving = true;
  if (sequence.under_way == 0) sequence.end(EndReason::kInternal, sequence.error);
  return true;
}

void Delivery::deliver_token(Sequence& sequence, SampledToken token) {
  if (token.error != nullptr) {
    const bool of_guide = sequence.guide != nullptr && !sequence.guide->error().empty();
    return of_guide ? sequence.end(EndReason::kConstraint, sequence.guide->error().c_str())
                    : sequence.end(EndReason::kInternal, token.error);
  }
  const StopKind stop =
      stop_kind(token.id, sequence.request.sampling, vocab_, sequence.decode.generated);
  sequence.append(token.id);
  ++stats_.generated_tokens;
  metrics_.add_generated_tokens(1);
  if (sequence.decode.generated == 1) {
    metrics_.observe_prefill(seconds_between(sequence.started, sequence.decode.first_token));
  }

  const int32_t id = token.id;
  if (stop == StopKind::kEos) {
    sequence.end_with(std::move(token), EndReason::kEos, id);
  } else if (stop == StopKind::kStopId) {
    sequence.end_with(std::move(token), EndReason::kStopId, id);
  } else if (sequence.decode.generated == sequence.request.sampling.max_tokens) {
    sequence.end_with(std::move(token), EndReason::kLength, -1);
  } else {
    if (sequence.guide != nullptr) sequence.guide->accept(id, masks_);
    sequence.stream().push(std::move(token));
  }
}

}  // namespace recurve
