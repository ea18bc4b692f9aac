#pragma once
#include "kernels/cuda/sm80/matrix/tile_weights.cuh"
#include "kernels/ops/gla.h"

// The recurrences with one decay a head and row in the frame of tiles.
namespace recurve::cuda::sm80 {

struct GlaGates {
  GlaDecay decay;
  const float *g, *i;
  int stride;
  static constexpr bool kStabilised = false;
  __device__ RowGate at(int64_t row, int head) const {
    const int64_t at = row * stride + head;
    float log_decay = 0;
    if (decay == GlaDecay::kHead) log_decay = g[head];
    if (decay == GlaDecay::kToken) log_decay = g[at];
    return {log_decay, 0, i == nullptr ? 1 : expf(i[at])};
  }
};

inline TileChunkArgs tiles_of(const GlaArgs& a) {
  return {.seqs = a.seqs,
          .H = a.H,
          .DK = a.DK,
          .DV = a.DV,
          .chunk = a.chunk,
          .q = {a.q, a.q_stride, 1, a.DK},
          .k = {a.k, a.k_stride, 1, a.DK},
          .v = {a.v, a.v_stride, 1, a.DV},
          .S = a.S,
          .keys_inner = false,
          .z = a.z,
          .m = nullptr,
          .eps = a.eps,
          .bounded = a.bounded,
          .o = a.o};
}

}  // namespace recurve::cuda::sm80
