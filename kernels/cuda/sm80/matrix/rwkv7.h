#pragma once
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Channels of a head, at most: a warp has all keys of its columns in registers.
constexpr int kMostRwkv7Channels = 128;

// Keys of a head of kWholeRwkv7 channels that a thread has.
constexpr int kKeysOfWhole = 8;

// Sequences of one row each, with the gate before the recurrence and the norm behind it: where
// rwkv7_cells() says so, to the same bits as one after the other.
void rwkv7_cell(const Rwkv7Args& args, Stream& stream);

// Sequences of any length, of heads of kWholeRwkv7 channels, with everything at multiples of 16
// bytes: to the same bits as the other kernels.
void rwkv7_rows(const Rwkv7Args& args, Stream& stream);

}  // namespace recurve::cuda::sm80
