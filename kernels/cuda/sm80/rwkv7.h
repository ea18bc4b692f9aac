#pragma once

namespace recurve::cuda::sm80 {

// Channels of a head, at most: a warp has all keys of its columns in registers.
constexpr int kMostRwkv7Channels = 128;

}  // namespace recurve::cuda::sm80
