#pragma once

namespace recurve::cuda::sm90 {

// Columns of a box, which the copy engine brings to shared memory in one piece: of K. In bf16 they
// are the 128 bytes of the swizzle.
constexpr int kBoxK = 64;

}  // namespace recurve::cuda::sm90
