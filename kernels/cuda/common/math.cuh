#pragma once
#include <cstdint>

// Device functions of several ops. No fast-math: these keep to a few ulp of the reference.
namespace recurve::cuda {

constexpr int kWarpSize = 32;

__device__ inline float widen_bf16(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

// Both rounded to nearest even, `low` in the lower half.
__device__ inline uint32_t round_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// log(sigmoid(x)); the argument of exp is never positive.
__device__ inline float log_sigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

// The product is not to be fused with what follows, as several kernels must round it alike.
__device__ inline float soft_cap(float x, float cap) { return __fmul_rn(cap, tanhf(x / cap)); }

// Like std::max(a, b), it keeps a where one of them is NaN.
__device__ inline float max_of(float a, float b) { return a < b ? b : a; }

__device__ inline float warp_sum(float value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The sum of four products, added to `sum` from the first to the last.
__device__ inline float dot4(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// The sum of the squares of four values, added in one order wherever a norm of rows is made.
__device__ inline float squares_of(const float4& v) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, __fmul_rn(v.x, v.x))));
}

// The sum of eight values: a lane's four and those of the adjacent lane. Both lanes call it.
__device__ inline float sum_of_eight(float squares) {
  const int lane = threadIdx.x % kWarpSize;
  return squares + __shfl_xor_sync(3u << (lane & ~1), squares, 1);
}

// What a norm multiplies by, from the sum of so many squares.
__device__ inline float norm_scale(float squares, int count, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(count) + eps);
}

// The sum over the threads of the block, known to all, added in an order that depends on the size
// of the block alone. To be called by all its kThreads threads.
template <int kThreads>
__device__ float block_sum(float value) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ float sums[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = sums[0];
  for (int warp = 1; warp < kWarps; ++warp) value += sums[warp];
  __syncthreads();  // before the next sum
  return value;
}

// Whether this block is the last of so many that come here; it sees what all of them have written
// in global memory, by loads that pass over the L1 cache. All threads. The counter, 0 before, is 0
// again then.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) + 1 == blocks;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace recurve::cuda
