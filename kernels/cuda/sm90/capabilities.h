#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/scratch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/ops/delta_rule.h"
#include "kernels/ops/gla.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/mlstm.h"
#include "kernels/ops/ssd.h"

// What the kernels of compute capability 9.0 say of themselves, as sm80/capabilities.h does for
// all.
namespace recurve::cuda::sm90 {

// No layer of more rows defers a norm; where other ops do, a separate kernel finds the scales.
constexpr int kMostRowsOfDeferredNorm = 64;

// The most rows of which a layer does the convolution too: the states of more keep the end of the
// layer longer than a separate kernel takes.
constexpr int kMostConvolved = 16;

// Small matrices are left to the kernel that rounds no activation: they cost little either way, and
// the models they make are the ones that rounding would show in. RWKV-7's 96 x 4096 is none: it
// takes 27 us there for 256 rows, and 128 x 4096 takes 8 here (H200). Which kernel takes a matrix
// depends on the matrix alone, never on the rows.
constexpr int64_t kSmallMatrix = 3 << 17;

// Nor are the low-rank pairs of wide models: 96 x 2560 takes 5.7 us there for one row and 17.6 for
// 256, where 320 x 2560 takes 3.2 and 5.7 here.
constexpr int64_t kWide = 2048, kLeastRank = 64;
inline bool small_matrix(const Matrix& W) {
  const int64_t rank = W.N < W.K ? W.N : W.K, width = W.N < W.K ? W.K : W.N;
  return W.N * W.K < kSmallMatrix && (width < kWide || rank < kLeastRank);
}
inline bool linear_takes(const Matrix& W) {
  const bool packed =
      W.format != nullptr && W.K % 8 == 0 && sm80::aligned(W.data) && sm80::aligned(W.scales);
  return (packed || sm80::linear_bf16_takes(W)) && !small_matrix(W);
}

// Whether the products with the matrices of experts round x to bf16.
inline bool experts_round(const Matrix& W) {
  return sm80::experts_take_tiles(W) && !small_matrix(W);
}

// Whether the layer's kernel, where it takes the matrix, can end with this convolution.
inline bool can_end_with(const LinearArgs& args, const CausalConv1dArgs& conv) {
  return conv.seqs.max_len == 1 && args.rows <= kMostConvolved && args.W.N % 4 == 0 &&
         (conv.x - args.y) % 4 == 0 && sm80::aligned(args.y) && sm80::aligned(args.bias) &&
         sm80::takes_four_channels(conv);
}

inline bool linear_convolves(const LinearArgs& args, const CausalConv1dArgs& conv) {
  return linear_takes(args.W) && can_end_with(args, conv);
}

// Whether the layer's kernel, where it takes the matrix, can end with the activation: of more rows
// the tiles are wide ones, whose ends are made for plain outputs.
constexpr int kMostActivated = 64;
inline bool linear_activates(const LinearArgs& args) {
  return linear_takes(args.W) ? args.rows <= kMostActivated && sm80::can_activate(args)
                              : sm80::linear_activates(args);
}

// A layer of so few rows ends with what adapters add to them.
constexpr int kMostJoinedRows = 64;

// What the one pass of tile_scan.h over prompts takes: so many rows and values of a head a tile,
// and of a tile in scratch memory so many bytes of weights a head (sm80::TileWeights).
constexpr int kScanRows = 64, kScanColumns = 64;
constexpr size_t kScanWeightBytes = 2320;

// Bytes of a tile in scratch memory: queries and keys of each group in bf16, and weights; with a
// normaliser what a tile adds to it, what it is before the tile, and three numbers of the
// stabiliser.
inline size_t scan_tile_bytes(int groups, int heads, int keys, bool normalises) {
  const size_t rows = static_cast<size_t>(groups) * 2 * kScanRows * static_cast<size_t>(keys);
  const size_t normaliser = 2 * sizeof(float) * static_cast<size_t>(keys) + 3 * sizeof(double);
  return rows * sizeof(uint16_t) +
         static_cast<size_t>(heads) * (kScanWeightBytes + (normalises ? normaliser : 0));
}

// The same where each channel has a decay: queries, keys, these decays, and P in bf16.
constexpr size_t kScanPairBytes = 8192;
inline size_t scan_channel_tile_bytes(int heads, int keys) {
  const auto width = static_cast<size_t>(keys);
  return static_cast<size_t>(heads) *
         (2 * kScanRows * width * sizeof(uint16_t) + width * sizeof(float) + kScanPairBytes);
}

// Whether the state space goes through prompts in one pass. Depends on the shape of heads and on
// how their rows lie alone.
inline bool ssd_scans(const SsdArgs& a) {
  const bool heads = (a.N == 64 || a.N == 128) && a.P % kScanColumns == 0;
  const bool strides = a.xBC_stride % 4 == 0 && (a.z == nullptr || a.z_stride % 4 == 0);
  const bool places = sm80::aligned(a.x) && sm80::aligned(a.B) && sm80::aligned(a.C) &&
                      sm80::aligned(a.z) && sm80::aligned(a.y);
  const auto tiles_of_chunk = static_cast<size_t>(a.chunk / kScanRows);
  return heads && strides && places && a.chunk > 1 && a.chunk % kScanRows == 0 &&
         tiles_of_chunk * scan_tile_bytes(a.G, a.H, a.N, false) <= kScratchBytes;
}

// The same for recurrences with one decay a head and row, or one a channel without a normaliser.
inline bool scan_takes_heads(int DK, int DV) {
  return (DK == 64 || DK == 128 || DK == 256) && DV % kScanColumns == 0;
}
inline bool gla_scans(const GlaArgs& a) {
  const bool strides = a.q_stride % 4 == 0 && a.k_stride % 4 == 0 && a.v_stride % 4 == 0;
  const bool places =
      sm80::aligned(a.q) && sm80::aligned(a.k) && sm80::aligned(a.v) && sm80::aligned(a.o);
  const auto tiles_of_chunk = static_cast<size_t>(a.chunk / kScanRows);
  const bool channels = a.decay == GlaDecay::kChannel;
  const bool decays = !channels || (a.z == nullptr && a.g_stride % 4 == 0 && sm80::aligned(a.g));
  const size_t tile = channels ? scan_channel_tile_bytes(a.H, a.DK)
                               : scan_tile_bytes(a.H, a.H, a.DK, a.z != nullptr);
  return decays && scan_takes_heads(a.DK, a.DV) && strides && places && a.chunk > 1 &&
         a.chunk % kScanRows == 0 && tiles_of_chunk * tile <= kScratchBytes;
}
inline bool mlstm_scans(const MlstmArgs& a) {
  const bool places = a.stride % 4 == 0 && sm80::aligned(a.q) && sm80::aligned(a.k) &&
                      sm80::aligned(a.v) && sm80::aligned(a.h);
  const auto tiles_of_chunk = static_cast<size_t>(a.chunk / kScanRows);
  return scan_takes_heads(a.DK, a.DV) && places && a.chunk > 1 && a.chunk % kScanRows == 0 &&
         tiles_of_chunk * scan_tile_bytes(a.H, a.H, a.DK, true) <= kScratchBytes;
}

// Whether the delta rule takes prompts by tiles of kScanRows rows with products of bf16
// (delta_tiles.h). Of such a tile scratch memory has keys and queries, and so many bytes of weights
// a head.
constexpr size_t kDeltaWeightBytes = 17168;
constexpr size_t kDeltaWaveBytes = kScratchBytes / 2;  // of the tiles that are made at once
inline size_t delta_tile_bytes(int H, int HK, int DK) {
  return static_cast<size_t>(HK) * 2 * kScanRows * static_cast<size_t>(DK) * sizeof(uint16_t) +
         static_cast<size_t>(H) * kDeltaWeightBytes;
}
inline bool delta_scans(const DeltaRuleArgs& a) {
  const bool strides = a.q_stride % 4 == 0 && a.k_stride % 4 == 0 && a.v_stride % 4 == 0;
  const bool places = sm80::aligned(a.q) && sm80::aligned(a.k) && sm80::aligned(a.v);
  const auto tiles_of_chunk = static_cast<size_t>(a.chunk / kScanRows);
  return a.bounded_beta && a.decay != DeltaDecay::kChannel && scan_takes_heads(a.DK, a.DV) &&
         strides && places && a.chunk > 1 && a.chunk % kScanRows == 0 &&
         tiles_of_chunk * delta_tile_bytes(a.H, a.HK, a.DK) <= kDeltaWaveBytes;
}

inline bool ssd_defers_norm(const SsdArgs& args) {
  return sm80::ssd_defers_norm(args) || (args.seqs.max_len > 1 && ssd_scans(args));
}

}  // namespace recurve::cuda::sm90
