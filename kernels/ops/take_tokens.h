#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/sample.h"

namespace recurve {

// The input of a step that is known on the device alone. A sequence that decodes absorbs the token
// that was sampled for its slot last; if its answer has ended meanwhile it takes no part: it
// absorbs token 0 in slot 0, the scratch slot.
struct TakeTokensArgs {
  int num_seqs;
  const int32_t* begin;            // (num_seqs + 1) first row of each sequence
  const int32_t* planned;          // (num_seqs) slots
  const int32_t* decodes;          // (num_seqs) 1: it decodes; 0: its tokens are there
  const SampleProgress* progress;  // (slots + 1)
  int32_t* slot;                   // (num_seqs) out
  int32_t* tokens;                 // (rows) those of sequences that decode are written
};

struct TakeTokensKernel {
  static constexpr const char* kName = "take_tokens";
  Op<TakeTokensArgs> take_tokens;
  static constexpr auto kOp = &TakeTokensKernel::take_tokens;
};

}  // namespace recurve
