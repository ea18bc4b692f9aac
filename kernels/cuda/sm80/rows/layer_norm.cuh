#pragma once
#include "kernels/cuda/common/math.cuh"

// The layer norm of values that a block of kThreads threads has in registers, kHeld each: thread t
// has those with the numbers t, t + kThreads and so on, up to `size`.
namespace recurve::cuda::sm80 {

struct Moments {
  float mean, scale;

  __device__ float norm(float x, float w, float bias) const {
    return fmaf(__fmul_rn(x - mean, scale), w, bias);
  }
};

template <int kThreads, int kHeld>
struct HeldNorm {
  float w[kHeld], bias[kHeld];

  // Calls visit(j, number) for each of the thread's values that there are.
  template <typename Visit>
  static __device__ void for_each(int size, Visit visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int d = j * kThreads + static_cast<int>(threadIdx.x);
      if (d < size) visit(j, d);
    }
  }

  // The weights and biases, which may be null.
  __device__ void load(const float* weights, const float* biases, int size) {
    for_each(size, [&](int j, int d) {
      w[j] = weights[d];
      bias[j] = biases == nullptr ? 0 : biases[d];
    });
  }

  // All threads.
  static __device__ Moments moments(const float (&x)[kHeld], int size, float eps) {
    float sum = 0, squares = 0;
    for_each(size, [&](int j, int) { sum += x[j]; });
    const float mean = block_sum<kThreads>(sum) / static_cast<float>(size);
    for_each(size, [&](int j, int) { squares = fmaf(x[j] - mean, x[j] - mean, squares); });
    squares = block_sum<kThreads>(squares);
    return {mean, norm_scale(squares, size, eps)};
  }

  // Norms x in place. All threads.
  __device__ void apply(float (&x)[kHeld], int size, float eps) const {
    const Moments of_x = moments(x, size, eps);
    for_each(size, [&](int j, int) { x[j] = of_x.norm(x[j], w[j], bias[j]); });
  }
};

// Calls f.operator()<kThreads>() with how many threads norm a group of so many values, of up to
// kMostHeld.
constexpr int kHeldOfNorm = 4, kMostHeld = 1024 * kHeldOfNorm;
template <typename F>
void with_norm_threads(int size, F f) {
  if (size <= 512) return f.template operator()<128>();
  if (size <= 1024) return f.template operator()<256>();
  if (size <= 2048) return f.template operator()<512>();
  f.template operator()<1024>();
}

}  // namespace recurve::cuda::sm80
