#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace recurve {

// The size of a step. rows >= slots + chunk and logits >= slots + chunk, so that every decode and
// at least one chunk of a prompt always fit.
struct StepBounds {
  int rows;    // tokens of all sequences together
  int logits;  // rows whose logits are computed
  int chunk;   // the grid on which prompts are cut
};

// What one running sequence has ready.
struct Pending {
  int tokens;   // not yet absorbed; 0: it waits for something and takes no part
  bool prompt;  // the tokens are (the rest of) a prompt; otherwise one decode
  bool scored;  // every row of the prompt wants its logits, not only the last
};

// How many tokens each sequence brings to the next step, in the order given.
//
// Every decode brings its token: nobody's next token waits for another's prompt. Prompts share the
// rest chunk by chunk, in turns that begin with sequence `first`, which the caller moves on from
// step to step: so no prompt waits for another's end either. A prompt is cut at multiples of the
// chunk only, counted from its start; what it brings does not depend on its neighbours except in
// how many whole chunks, and the recurrence gives the same bits for any such cut.
// Pure: no clock, no device, no locks.
std::vector<int> plan_step(const StepBounds& bounds, std::span<const Pending> pending,
                           size_t first);

// The `first` of the step after this one: behind the prompt that came first now, which had at least
// one chunk. So each prompt comes first once in as many steps as there are sequences.
size_t next_first(std::span<const Pending> pending, size_t first);

}  // namespace recurve
