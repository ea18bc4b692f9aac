#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Channels of a head, at most: a warp has all keys of its columns in registers.
constexpr int kMostRwkv7Channels = 128;

// Channels of the heads that there are in public, which have separate kernels, and keys of one
// that a thread has.
constexpr int kWholeRwkv7 = 64, kKeysOfWhole = 8;

// Sequences of any length, of heads of kWholeRwkv7 channels, with everything at multiples of 16
// bytes: to the same bits as the other kernels.
void rwkv7_rows(const Rwkv7Args& args, Stream& stream);

}  // namespace recurve::cuda::sm80
