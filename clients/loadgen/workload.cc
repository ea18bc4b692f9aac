#include "clients/loadgen/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace recurve::loadgen {
namespace {

// Independent streams of random numbers for each conversation, turn and purpose, so that nothing
// depends on which thread draws first.
Rng rng_of(uint64_t seed, uint64_t index, uint64_t turn, uint32_t purpose) {
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  std::seed_seq sequence{high(seed), low(seed), high(index), low(index), low(turn), purpose};
  return Rng(sequence);
}

enum Purpose : uint32_t { kLengths, kIds, kSampling };

}  // namespace

Workload::Workload(WorkloadOptions options, WorkloadLimits limits)
    : options_(std::move(options)), limits_(std::move(limits)) {
  for (int32_t id = 0; id < limits_.token_count; ++id) {
    const auto& reserved = limits_.reserved;
    if (std::find(reserved.begin(), reserved.end(), id) == reserved.end()) ids_.push_back(id);
  }
  if (ids_.empty()) {
    throw std::invalid_argument(
        fmt::format("the server's model has {} tokens, which leaves none for prompts of random "
                    "ids: give texts with --prompts FILE",
                    limits_.token_count));
  }
}

Conversation Workload::conversation(uint64_t index) const {
  Rng rng = rng_of(options_.seed, index, 0, kLengths);
  Conversation conversation{.index = index, .turns = {}};
  for (int t = 0; t < options_.turns; ++t) conversation.turns.push_back(turn(index, t, rng));
  return conversation;
}

Turn Workload::turn(uint64_t index, int number, Rng& rng) const {
  const int64_t most_prompt = limits_.max_prompt_tokens, most_output = limits_.max_output_tokens;
  Turn turn{.prompt_tokens = options_.prompt_tokens.draw_tokens(rng, 1, most_prompt),
            .output_tokens = options_.output_tokens.draw_tokens(rng, 1, most_output),
            .think_seconds = number == 0 ? 0 : options_.think_seconds.draw(rng)};
  if (!options_.trace.empty()) {
    const size_t row =
        (index * static_cast<uint64_t>(options_.turns) + static_cast<uint64_t>(number)) %
        options_.trace.size();
    turn.prompt_tokens = std::min(options_.trace[row].prompt_tokens, most_prompt);
    turn.output_tokens = std::min(options_.trace[row].output_tokens, most_output);
  }
  if (asks_in_text()) turn.prompt_tokens = 0;
  return turn;
}

const std::string& Workload::prompt_text(uint64_t index, size_t turn) const {
  const uint64_t number = index * static_cast<uint64_t>(options_.turns) + turn;
  return options_.prompts[number % options_.prompts.size()];
}

std::vector<int32_t> Workload::prompt_ids(const Conversation& conversation, size_t turn) const {
  Rng rng = rng_of(options_.seed, conversation.index, turn, kIds);
  std::uniform_int_distribution<size_t> choice(0, ids_.size() - 1);
  std::vector<int32_t> ids(static_cast<size_t>(conversation.turns[turn].prompt_tokens));
  for (int32_t& id : ids) id = ids_[choice(rng)];
  return ids;
}

uint64_t Workload::sampling_seed(uint64_t index, size_t turn) const {
  return rng_of(options_.seed, index, turn, kSampling)();
}

}  // namespace recurve::loadgen
