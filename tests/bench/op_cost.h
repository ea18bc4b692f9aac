#pragma once
#include <fmt/format.h>

#include <string>

#include "kernels/kernels.h"
#include "kernels/weight_format.h"

namespace recurve::bench {

// The product of matrices that a call of an op is, (rows, K) by (K, N): of no rows where it is
// none.
struct Product {
  int64_t rows = 0, N = 0, K = 0;
};

// What a call of an op works on, and the bytes that no way of doing it can do without: its inputs
// read once, its outputs written once, states both. One function an op of the table.
struct OpCost {
  std::string shape;
  double bytes;
  Product product = {};
  const void* matrix = nullptr;  // the weights of an embedding or a product
  double unread = 0;             // bytes of them that the call leaves alone: rows, or experts
};

inline double bytes_of(const Matrix& m) {
  const WeightFormat& format = format_of(m);
  return static_cast<double>(m.N) *
         static_cast<double>(format.row_bytes(m.K) + format.row_scales(m.K));
}
// Of `each` floats.
inline double floats(double count, double each = 1) { return 4 * count * each; }
// Of the states of these sequences, `each` values a sequence, written once in `every` rows.
inline double state(const Ragged& seqs, double each, DType type = DType::kF32, int every = 1) {
  return (1 + 1.0 / every) * static_cast<double>(size_of(type)) * seqs.num_seqs * each;
}

inline OpCost cost_of(const EmbedArgs& a) {
  const double read = a.rows * bytes_of(a.E) / static_cast<double>(a.E.N);
  return {.shape = fmt::format("{}", a.E.K),
          .bytes = a.rows * 4 * static_cast<double>(a.E.K) + read,
          .matrix = a.E.data,
          .unread = bytes_of(a.E) - read};
}
inline OpCost cost_of(const GatherRowsArgs& a) {
  return {fmt::format("{}", a.D), floats(a.count, 2.0 * a.D)};
}
inline OpCost cost_of(const RmsNormArgs& a) {
  return {fmt::format("{}", a.D), floats(a.rows, 2.0 * a.D)};
}
inline OpCost cost_of(const CausalConv1dArgs& a) {
  return {
      fmt::format("{}x{}", a.D, a.width),
      floats(a.seqs.rows, 2.0 * a.D) + state(a.seqs, a.D * (a.width - 1.0)) + floats(a.D, a.width)};
}
inline OpCost cost_of(const LinearArgs& a) {
  const auto outputs = static_cast<double>(a.outputs()), K = static_cast<double>(a.W.K);
  const double x = (a.x_bf16 == nullptr ? 4 : 2) * K, y = (a.y_bf16 == nullptr ? 4 : 2) * outputs;
  const double residual = a.residual == nullptr ? 0 : 4 * outputs;
  // A convolution takes its x from the layer, and writes where that would have.
  const double conv = a.conv ? cost_of(*a.conv).bytes - floats(a.rows, 2.0 * a.conv->D) : 0;
  return {fmt::format("{}x{}{}{}{}{}", a.W.N, a.W.K, a.norm == nullptr ? "" : " norm",
                      a.swiglu ? " swiglu" : "", a.conv ? " conv" : "",
                      a.activation == Activation::kIdentity ? "" : " activation"),
          bytes_of(a.W) + a.rows * (x + y + residual) + conv,
          {.rows = a.rows, .N = a.W.N, .K = a.W.K},
          a.W.data};
}
inline OpCost cost_of(const LoraArgs& a) {
  double bytes = 0;
  for (const LoraRows& group : a.groups) {
    const auto rows = static_cast<double>(group.rows.size());
    for (const LoraPart& part : group.layers[static_cast<size_t>(a.layer)]) {
      bytes +=
          static_cast<double>(part.r * (a.K + part.N) * static_cast<int64_t>(size_of(part.dtype)));
      bytes += floats(rows, static_cast<double>(a.K + 2 * part.N));
    }
  }
  return {fmt::format("{}x{}", a.N, a.K), bytes};
}
inline OpCost cost_of(const MlstmArgs& a) {
  const double o = a.head_norm == nullptr ? 0 : a.DV, h = (a.h_bf16 == nullptr ? 1 : 0.5) * a.DV;
  return {fmt::format("{}x{}x{}", a.H, a.DK, a.DV),
          floats(a.seqs.rows, a.H * (2.0 * a.DK + 1.0 * a.DV + h + 2 + o)) +
              state(a.seqs, 1.0 * a.H * a.DK * a.DV, a.C.dtype) +
              state(a.seqs, a.H * (a.DK + 1.0))};
}
inline OpCost cost_of(const HeadNormGateArgs& a) {
  return {fmt::format("{}x{}", a.H, a.DV), floats(a.rows, 3.0 * a.H * a.DV)};
}
inline OpCost cost_of(const SoftCapArgs& a) {
  return {fmt::format("{}", a.count), floats(2, static_cast<double>(a.count))};
}
inline OpCost cost_of(const SelectiveScanArgs& a) {
  const double z = a.z == nullptr ? 0 : a.D;
  return {fmt::format("{}x{} rank {}", a.D, a.N, a.R),
          floats(a.seqs.rows, 2.0 * a.D + z + a.num_params()) +
              state(a.seqs, 1.0 * a.D * a.N, a.h.dtype) + bytes_of(a.dt_proj) +
              floats(a.D, a.N + 2.0)};
}
inline OpCost cost_of(const SsdArgs& a) {
  const double channels = 1.0 * a.H * a.P, z = a.z == nullptr ? 0 : channels;
  return {fmt::format("{}x{}x{}", a.H, a.P, a.N),
          floats(a.seqs.rows, 2 * channels + z + 2.0 * a.G * a.N + a.H) +
              state(a.seqs, channels * a.N, a.h.dtype, a.held.every) +
              floats(a.seqs.num_seqs * (a.held.every - 1) / 2.0, channels + a.G * a.N + a.H)};
}
inline OpCost cost_of(const HeldRowsArgs& a) {
  return {fmt::format("{}", a.every), floats(3, a.seqs.num_seqs)};
}
inline OpCost cost_of(const LinearRecurrenceArgs& a) {
  return {fmt::format("{}", a.D), floats(a.seqs.rows, 3.0 * a.D) + state(a.seqs, a.D)};
}
inline OpCost cost_of(const GatedRmsNormArgs& a) {
  return {fmt::format("{}x{}", a.G, a.D / a.G), floats(a.rows, (a.z == nullptr ? 2.0 : 3.0) * a.D)};
}
inline OpCost cost_of(const GlaArgs& a) {
  const double decays = a.decay == GlaDecay::kChannel ? a.H * a.DK
                        : a.decay == GlaDecay::kToken ? a.H
                                                      : 0;
  const double i = a.i == nullptr ? 0 : a.H;
  return {fmt::format("{}x{}x{}", a.H, a.DK, a.DV),
          floats(a.seqs.rows, a.H * (2.0 * a.DK + 2.0 * a.DV) + decays + i) +
              state(a.seqs, 1.0 * a.H * a.DK * a.DV, a.S.dtype) +
              state(a.seqs, a.z == nullptr ? 0 : 1.0 * a.H * a.DK)};
}
inline OpCost cost_of(const GlaGateArgs& a) {
  return {fmt::format("{}x{}", a.W.N, a.W.K),
          bytes_of(a.W) + floats(a.rows, static_cast<double>(a.W.N + a.W.K))};
}
inline OpCost cost_of(const HgrnGateArgs& a) {
  return {fmt::format("{}", a.D), floats(a.rows, 3.0 * a.D)};
}
inline OpCost cost_of(const HeadRmsNormArgs& a) {
  return {fmt::format("{}x{}", a.H, a.DV),
          floats(a.rows, (a.gate == nullptr ? 2.0 : 3.0) * a.H * a.DV)};
}
inline OpCost cost_of(const PositionsArgs& a) {
  return {"", floats(a.seqs.rows) + state(a.seqs, 1)};
}
inline OpCost cost_of(const RotaryArgs& a) {
  return {fmt::format("{}x{}", a.H, a.D), floats(a.rows, 2.0 * a.H * a.D + 1)};
}
inline OpCost cost_of(const ActivationArgs& a) {
  return {fmt::format("{}", a.width), floats(a.rows, (a.y_bf16 == nullptr ? 2 : 1.5) * a.width)};
}
inline OpCost cost_of(const RnnArgs& a) {
  const double channels = 1.0 * a.H * a.DH, gates = static_cast<double>(a.R.N) / channels;
  const double states = 1.0 + (a.c != nullptr) + (a.n != nullptr) + (a.m != nullptr);
  return {fmt::format("{}x{} {} gates", a.H, a.DH, gates),
          bytes_of(a.R) + floats(a.seqs.rows, (gates + 1) * channels) +
              state(a.seqs, states * channels)};
}
inline OpCost cost_of(const LayerNormArgs& a) {
  return {fmt::format("{}x{}", a.G, a.D / a.G),
          floats(a.rows, (a.residual == nullptr ? 2.0 : 3.0) * a.D)};
}
inline OpCost cost_of(const HeadwiseLinearArgs& a) {
  const auto N = static_cast<double>(a.W.N), K = static_cast<double>(a.W.K);
  return {fmt::format("{}x{}x{}", a.H, a.W.N / a.H, a.W.K),
          bytes_of(a.W) + floats(a.rows, a.H * K + N)};
}
inline OpCost cost_of(const GluArgs& a) {
  return {fmt::format("{}", a.F), floats(a.rows, 3.0 * a.F)};
}
inline OpCost cost_of(const SkipGateArgs& a) {
  return {fmt::format("{}", a.D), floats(a.rows, 4.0 * a.D)};
}
inline OpCost cost_of(const AddArgs& a) {
  return {fmt::format("{}", a.count), floats(3, static_cast<double>(a.count))};
}
inline OpCost cost_of(const FeatureMapArgs& a) {
  const double in = a.map == FeatureMap::kProduct ? 2.0 * a.D : a.D;
  return {fmt::format("{}x{}", a.H, a.D),
          floats(a.rows, a.H * (in + static_cast<double>(mapped_width(a.map)) * a.D))};
}
inline OpCost cost_of(const TokenShiftArgs& a) {
  double y = 0;  // floats a channel
  for (int i = 0; i < a.n; ++i) {
    y += (a.y[i] == nullptr ? 0 : 1) + (a.y_bf16[i] == nullptr ? 0 : 0.5);
  }
  return {fmt::format("{}x{}{}", a.n, a.D, a.norm == nullptr ? "" : " norm"),
          floats(a.seqs.rows, (1 + y) * a.D) + state(a.seqs, a.D) + floats(a.n, a.D)};
}
inline OpCost cost_of(const Rwkv7GateArgs& a) {
  const double arrays = a.m == nullptr ? 7 : 11;  // w, a, k and v both ways, kk; m and v_first
  return {fmt::format("{}x{}", a.H, a.N), floats(a.rows, arrays * a.H * a.N)};
}
inline OpCost cost_of(const HeadNormBonusArgs& a) {
  return {fmt::format("{}x{}", a.H, a.N),
          floats(a.rows, (a.y_bf16 == nullptr ? 6 : 5.5) * a.H * a.N)};
}
inline OpCost cost_of(const Rwkv7Args& a) {
  // With the gate before it and the norm behind it: r, w, a, k, v, g and y, and m and v_first.
  const double mixed = a.gate && a.gate->m != nullptr ? 2 : 0;
  const double arrays = a.out ? mixed + (a.out->y_bf16 == nullptr ? 7 : 6.5) : 7;
  return {
      fmt::format("{}x{}x{}{}", a.H, a.N, a.N, a.out ? " cell" : ""),
      floats(a.seqs.rows, arrays * a.H * a.N) + state(a.seqs, 1.0 * a.H * a.N * a.N, a.S.dtype)};
}
inline OpCost cost_of(const DeltaGateArgs& a) {
  const double gates = a.H * (a.b == nullptr ? 1.0 : 2.0) + 2.0 * a.H * a.decays;
  return {fmt::format("{}x{}", a.HK, a.DK), floats(a.rows, 4.0 * a.HK * a.DK + gates)};
}
inline OpCost cost_of(const DeltaRuleArgs& a) {
  const double decays = a.decay == DeltaDecay::kChannel ? 1.0 * a.H * a.DK
                        : a.decay == DeltaDecay::kToken ? a.H
                                                        : 0;
  return {fmt::format("{}x{}x{}", a.H, a.DK, a.DV),
          floats(a.seqs.rows, 2.0 * a.HK * a.DK + 2.0 * a.H * a.DV + a.H + decays) +
              state(a.seqs, 1.0 * a.H * a.DK * a.DV, a.S.dtype)};
}
inline OpCost cost_of(const RgLruArgs& a) {
  return {fmt::format("{}", a.D), floats(a.seqs.rows, 5.0 * a.D + 1) + state(a.seqs, a.D)};
}
// Of rings that are full, which sequences read once.
inline OpCost cost_of(const RingAttentionArgs& a) {
  const double width = 1.0 * a.HK * a.D;
  return {fmt::format("{}x{}x{} window {}", a.H, a.HK, a.D, a.W),
          floats(a.seqs.rows, 2.0 * a.H * a.D + 4 * width) +
              floats(a.seqs.num_seqs, 2.0 * a.W * width)};
}
inline OpCost cost_of(const AppendArgs& a) {
  const double width = 1.0 * a.HK * a.D, bytes = static_cast<double>(size_of(a.keys.dtype));
  return {fmt::format("{}x{}", a.HK, a.D), a.seqs.rows * 2 * width * (sizeof(float) + bytes)};
}
// stored: tokens whose keys and values the call reads, of all sequences together.
inline OpCost cost_of(const PagedAttentionArgs& a, double stored) {
  const double width = 1.0 * a.HK * a.D, bytes = static_cast<double>(size_of(a.keys.dtype));
  const double rows = a.gate == nullptr ? 2 : 3;
  return {fmt::format("{}x{}x{}", a.H, a.HK, a.D),
          floats(a.seqs.rows, rows * a.H * a.D) + stored * 2 * width * bytes};
}
inline OpCost cost_of(const RouterArgs& a) {
  return {fmt::format("{} of {}", a.top, a.E), floats(a.rows, a.E + 3.0 * a.top)};
}
// chosen: experts that have rows.
inline OpCost cost_of(const ExpertLinearArgs& a, int64_t chosen) {
  const auto N = static_cast<double>(a.outputs()), K = static_cast<double>(a.W.K);
  const double pairs = 1.0 * a.rows * a.top, share = static_cast<double>(chosen) / a.E;
  const bool gated = a.weight == nullptr;
  const double x = floats(gated ? a.rows : pairs, K),
               y = gated ? floats(pairs, N / 2) : floats(a.rows, 2 * N);
  return {.shape = fmt::format("{} of {} x {}x{}{}", a.top, a.E, a.outputs(), a.W.K,
                               gated ? " swiglu" : ""),
          .bytes = share * bytes_of(a.W) + x + y,
          .product = {.rows = int64_t{a.rows} * a.top, .N = a.outputs(), .K = a.W.K},
          .matrix = a.W.data,
          .unread = (1 - share) * bytes_of(a.W)};
}
inline OpCost cost_of(const TakeTokensArgs& a) { return {"", floats(a.num_seqs, 6)}; }
inline OpCost cost_of(const SampleArgs& a) {
  return {fmt::format("{}", a.V), floats(a.count, a.V)};
}

}  // namespace recurve::bench
