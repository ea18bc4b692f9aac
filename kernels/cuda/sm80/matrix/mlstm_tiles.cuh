#pragma once
#include <cmath>

#include "kernels/cuda/sm80/matrix/mlstm.cuh"
#include "kernels/cuda/sm80/matrix/tile_weights.cuh"

// The mLSTM in the frame of tiles.
namespace recurve::cuda::sm80 {

struct MlstmGates {
  const float *i, *f;
  int stride;
  float soft_cap;
  static constexpr bool kStabilised = true;
  __device__ RowGate at(int64_t row, int head) const {
    const int64_t at = row * stride + head;
    return {log_sigmoid(gate(f[at], soft_cap)), gate(i[at], soft_cap), 1};
  }
};

inline TileChunkArgs tiles_of(const MlstmArgs& a) {
  return {.seqs = a.seqs,
          .H = a.H,
          .DK = a.DK,
          .DV = a.DV,
          .chunk = a.chunk,
          .q = {a.q, a.stride, 1, a.DK},
          .k = {a.k, a.stride, 1, a.DK},
          .v = {a.v, a.stride, 1, a.DV},
          .S = a.C,
          .keys_inner = false,
          .z = a.n,
          .m = a.m,
          .eps = a.eps,
          .bounded = true,
          .o = a.h};
}

inline float mlstm_query_scale(const MlstmArgs& a) {
  return 1.0f / std::sqrt(static_cast<float>(a.DK));
}

}  // namespace recurve::cuda::sm80
