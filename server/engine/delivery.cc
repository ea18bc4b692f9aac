#include "server/engine/delivery.h"

#include <utility>

namespace recurve {

void Delivery::deliver(const Batch& batch, std::vector<std::unique_ptr<Sequence>>& forked) {
  for (const Batch::Member& member : batch.members()) {
    Sequence& sequence = *member.sequence;
    sequence.absorb(member.rows);
    if (sequence.prompt) {
      stats_.prompt_tokens += member.rows;
      metrics_.add_prompt_tokens(member.rows);
    }
    go_on(sequence, batch, member, forked);
  }
}

void Delivery::go_on(Sequence& sequence, const Batch& batch, const Batch::Member& member,
                     std::vector<std::unique_ptr<Sequence>>& forked) {
  const bool scored = sequence.scored();
  if (scored) score_prompt(sequence, batch, member);
  if (sequence.left() > 0 || sequence.ended) return;
  if (sequence.sampling.max_tokens == 0) return sequence.end(Finish::kLength);
  const auto last = batch.logits(member.first_logits + (scored ? member.rows - 1 : 0));
  fork_choices(sequence, last, forked);
  sample(sequence, last);
}

// A row of the prompt says how likely the token after it was.
void Delivery::score_prompt(Sequence& sequence, const Batch& batch, const Batch::Member& member) {
  const size_t first = sequence.absorbed - static_cast<size_t>(member.rows);
  std::vector<SampledToken> scored;
  for (int r = 0; r < member.rows; ++r) {
    const size_t next = first + static_cast<size_t>(r) + 1;
    if (next == sequence.input.size()) break;
    scored.push_back(sampler_.score(batch.logits(member.first_logits + r), sequence.input[next],
                                    sequence.sampling.prompt_logprobs));
    if (const char* error = scored.back().error) return sequence.end(Finish::kInternal, error);
  }
  sequence.stream->push_prompt(std::move(scored));
}

// The prompt is absorbed once; the further choices go on from copies of its state.
void Delivery::fork_choices(Sequence& sequence, std::span<const float> logits,
                            std::vector<std::unique_ptr<Sequence>>& forked) {
  for (size_t c = 0; c < sequence.siblings.size(); ++c) {
    Sequence::Sibling& sibling = sequence.siblings[c];
    pool_.copy(sequence.slot, sibling.slot);
    auto choice = std::make_unique<Sequence>(
        Sequence{.sampling = sequence.sampling,
                 .stream = std::move(sibling.stream),
                 .deadline = sequence.deadline,
                 .wait_for_acknowledgement = sequence.wait_for_acknowledgement,
                 .slot = std::move(sibling.slot),
                 .position = sequence.position,
                 .history = sequence.history,
                 .prompt_tokens = sequence.prompt_tokens,
                 .arrival = sequence.arrival,
                 .started = sequence.started});
    choice->sampling.seed += c + 1;
    sample(*choice, logits);
    forked.push_back(std::move(choice));
  }
  sequence.siblings.clear();
}

void Delivery::sample(Sequence& sequence, std::span<const float> logits) {
  SampledToken token =
      sampler_.sample(logits, sequence.sampling, sequence.history, sequence.generated);
  if (token.error != nullptr) return sequence.end(Finish::kInternal, token.error);
  const StopKind stop = sampler_.stop_kind(token.id, sequence.sampling, sequence.generated);
  sequence.say(token.id);
  ++stats_.generated_tokens;
  metrics_.add_generated_tokens(1);
  if (sequence.generated == 1) {
    metrics_.observe_prefill(seconds_between(sequence.started, sequence.first_token));
  }

  const int32_t id = token.id;
  if (stop == StopKind::kEos) {
    sequence.end_with(std::move(token), Finish::kEos, id);
  } else if (stop == StopKind::kStopId) {
    sequence.end_with(std::move(token), Finish::kStopId, id);
  } else if (sequence.generated == sequence.sampling.max_tokens) {
    sequence.end_with(std::move(token), Finish::kLength, -1);
  } else {
    sequence.stream->push(std::move(token));
  }
}

}  // namespace recurve
