#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// A state that is written once in several rows. What lies at its place is the state as of up to
// `every` - 1 rows ago, its base; what the rows since then bring lies next to it, as the op says. A
// step reads the base and these rows, and leaves its own with them. The row that would be number
// `every` writes the base instead, and none lies next to it then. Before a chunk of two rows or
// more the base takes the rows next to it in, and is rounded where it is kept in BF16.
//
// So how many there are follows from the rows of the sequence and their chunks, on which bits
// depend anyway, and from nothing else: copies of all arrays of a state go on as it does.
// Published as "replayed states": vLLM's checkpointing_ssu, FlashInfer.
struct HeldRows {
  int every = 1;                    // 1: the state is written in each row
  const int32_t* before = nullptr;  // (num_seqs) rows next to the states of a call's sequences
};

constexpr int kMostHeldEvery = 8;  // of HeldRows::every

// How many rows lie next to each state of a step, for all of its layers.
struct HeldRowsArgs {
  Ragged seqs;
  int chunk;        // rows, as of the op
  int every;        // at least 2
  int32_t* count;   // (slots) rows next to the state, each in [0, every); updated by these rows
  int32_t* before;  // (num_seqs) what it was
};

// Counts the rows of a sequence. Of these the step form takes all where chunks are of one row, else
// the last one where it is alone in its chunk.
#ifdef __CUDACC__
__device__ __host__
#endif
    inline void
    count_held_rows(const HeldRowsArgs& args, int sequence) {
  int32_t& count = args.count[args.seqs.slot[sequence]];
  const int rows = args.seqs.begin[sequence + 1] - args.seqs.begin[sequence];
  const int steps = args.chunk == 1 ? rows : rows % args.chunk == 1 ? 1 : 0;
  args.before[sequence] = count;
  count = ((steps == rows ? count : 0) + steps) % args.every;
}

struct HeldRowsKernel {
  static constexpr const char* kName = "held_rows";
  Op<HeldRowsArgs> held_rows;
  static constexpr auto kOp = &HeldRowsKernel::held_rows;
};

}  // namespace recurve
