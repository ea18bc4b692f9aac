#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

// Bounds of a step. rows >= slots + chunk and logits >= slots + chunk, so that all decodes and at
// least one chunk of a prompt always fit.
struct StepBounds {
  int rows;         // tokens of all sequences together
  int logits;       // rows whose logits are computed
  int chunk;        // prompts are cut at its multiples
  int prompt_rows;  // bound of prompt rows; the first chunk may exceed it
  // A first chunk of more rows gets a step without decodes.
  int max_prompt_rows_with_decodes = INT32_MAX;
  // The first chunk of a tenant without decodes gets a step without decodes, however short it is.
  bool separate_new_tenants = false;
};

// The input that a running sequence has for the next step.
struct StepCandidate {
  int tokens;   // not yet absorbed; 0: not ready, left out
  bool prompt;  // the tokens are of a prompt; false: one decode
  bool scored;  // logits of every row, not only of the last
  // Of prompts: the smallest is first, independent of the order in the list.
  int64_t rank = 0;
  // Bound of the rows in this step, so that the state at that point can be cached. Whole chunks.
  int most = INT32_MAX;
  TenantId tenant = 0;  // Identity::group()
  double weight = 1;    // of the tenant, see TenantLimits
};

// How many times shorter a far shorter prompt is.
inline constexpr int kFarShorter = 8;
inline bool is_far_shorter(int64_t tokens, int64_t than) { return tokens * kFarShorter <= than; }

// What a tenant with prompts has received in the steps so far.
struct Served {
  TenantId tenant = 0;
  double rows = 0;      // divided by its weight
  uint64_t chunks = 0;  // received in its turns
};

// What the plan of a step depends on from earlier steps.
struct Turns {
  std::vector<Served> served = {};  // tenants with prompts
  int prompt_only_steps = 0;        // consecutive last steps that left out decodes
};

// The contents of the next step.
struct StepPlan {
  std::vector<int> rows;  // of each candidate, in the given order
  Turns turns;            // for the plan of the next step
};

// Plans how many tokens of each sequence the next step has.
// Decodes: every decode is in every step, so no next token waits for another request's prompt. The
// exception: if a first chunk takes longer than the decodes (max_prompt_rows_with_decodes), steps
// of prompts and steps of decodes alternate. The weights are read for each, which costs a few
// percent of the throughput; a request that arrives waits for the end of a shorter step. The prompt
// of a tenant without decodes may have two steps in a row, and with separate_new_tenants a short
// one has a step without decodes too.
//
// Prompts share the remaining rows chunk by chunk. A chunk goes to the prompt of the smallest rank;
// every second one goes to the prompt with the fewest remaining tokens, if these are far fewer. So
// half of the rows serve prompts in the order of arrival, however many short ones follow, and the
// other half serve short prompts, however many long ones precede them.
//
// A prompt is cut only at multiples of the chunk, counted from its start. Other sequences affect
// how many whole chunks of it a step has, and the recurrence gives the same bits for any such cut.
// Tenants: each chunk goes to the tenant with the fewest absorbed rows for its weight, so the
// number and priority of one tenant's prompts do not delay another's. A new tenant begins with the
// count of the tenant that was served least; of equals, the one with fewer sequences is first. So a
// light tenant hardly waits for a heavy one. Pure function: no clock, no device, no locks.
StepPlan plan_step(const StepBounds& bounds, std::span<const StepCandidate> candidates,
                   const Turns& before);

}  // namespace recurve
