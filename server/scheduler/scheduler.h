#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

// The size of a step. rows >= slots + chunk and logits >= slots + chunk, so that every decode and
// at least one chunk of a prompt always fit.
struct StepBounds {
  int rows;         // tokens of all sequences together
  int logits;       // rows whose logits are computed
  int chunk;        // the grid on which prompts are cut
  int prompt_rows;  // what prompts may take of `rows`; the first chunk of a step always may
  // Of prompts, concurrent with decodes: a first chunk of more rows has a separate step.
  int max_prompt_rows_with_decodes = INT32_MAX;
  // So has the first chunk of a tenant that has no decodes, however short.
  bool separate_new_tenants = false;
};

// What one running sequence has ready.
struct StepCandidate {
  int tokens;   // not yet absorbed; 0: it waits for something and takes no part
  bool prompt;  // the tokens are (the rest of) a prompt; otherwise one decode
  bool scored;  // every row of the prompt wants its logits, not only the last
  // Who came first has the smaller one, wherever it stands; of prompts only.
  int64_t rank = 0;
  // Of these tokens, what this step may take: whole chunks. Its state is wanted as it is then.
  int most = INT32_MAX;
  TenantId tenant = 0;  // whose it is: Identity::group()
  double weight = 1;    // of the tenant, see TenantLimits
};

// A prompt so many times shorter than another is far shorter.
inline constexpr int kFarShorter = 8;
inline bool is_far_shorter(int64_t tokens, int64_t than) { return tokens * kFarShorter <= than; }

// What a tenant that has prompts was given of the steps so far.
struct Served {
  TenantId tenant = 0;
  double rows = 0;      // over its weight
  uint64_t chunks = 0;  // that it was given by turns
};

// What the steps so far mean for the next one.
struct Turns {
  std::vector<Served> served = {};  // those who have prompts
  int prompt_only_steps = 0;        // the last ones, in which decodes waited for prompts
};

// What the next step is made of.
struct StepPlan {
  std::vector<int> rows;  // tokens that each sequence brings, in the order given
  Turns turns;            // for the plan of the next step
};

// How many tokens each sequence brings to the next step.
//
// Every decode brings its token: no next token waits for another request's prompt. Only where a
// first chunk takes longer than the decodes (max_prompt_rows_with_decodes), steps of prompts and of
// decodes go by turns: the weights are read for each, which costs a few percent of the tokens, and
// a request that arrives meanwhile waits for the end of a shorter step and for no decodes in its
// own. The prompt of a tenant that has no decodes may go twice in a row before others' decodes, so
// that it need not wait for two steps; where a step is quick without others' decodes
// (separate_new_tenants) a short one goes before them too. Prompts share the rest chunk by chunk:
// they go to the prompt that came first, only that every second one goes to the one with the fewest
// tokens left, if these are far fewer. So half of what there is gets every prompt through in the
// order of their coming, however many short ones come after it, and the other half gets a short one
// through however many long ones came before it; those of like lengths are each done as early as
// they can be without delaying another. A prompt is cut at multiples of the chunk only, counted
// from its start; what it brings does not depend on its neighbours except in how many whole chunks,
// and the recurrence gives the same bits for any such cut.
//
// Of tenants whose prompts are there, each chunk goes to the one of which least was absorbed for
// its weight, so that one's prompts, however many and however urgent, do not stand before
// another's. Who comes anew has been served as little as who was served least, and of equals the
// one with fewer sequences goes first: a light tenant hardly waits for a heavy one.
//
// Pure: no clock, no device, no locks.
StepPlan plan_step(const StepBounds& bounds, std::span<const StepCandidate> candidates,
                   const Turns& before);

}  // namespace recurve
