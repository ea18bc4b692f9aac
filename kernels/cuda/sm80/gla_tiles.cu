// The chunk form by tiles, where a head has one decay a row.
#include "kernels/cuda/sm80/gla_chunk.h"
#include "kernels/cuda/sm80/tile_weights.cuh"

namespace recurve::cuda::sm80 {
namespace {

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

TileChunkArgs tiles_of(const GlaArgs& a) {
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

}  // namespace

bool gla_tiles(const GlaArgs& args, Stream& stream) {
  const TileChunkArgs tiles = tiles_of(args);
  if (args.decay == GlaDecay::kChannel || !tiles_take(tiles, stream)) return false;
  tile_chunks(tiles, GlaGates{args.decay, args.g, args.i, args.g_stride}, args.scale, stream);
  return true;
}

}  // namespace recurve::cuda::sm80
