#pragma once
#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "kernels/kernels.h"

namespace recurve::testing {

// The arguments of a call of an op in one line: what a kernel is told, in the order of the struct.
// Pointers are printed as numbers, 0 for none; where one of two pointers is used instead of the
// other, both are there.

template <typename T>
std::string value_text(const T& value) {
  if constexpr (std::is_pointer_v<T>) {
    return fmt::format("{:x}", reinterpret_cast<uintptr_t>(value));
  } else if constexpr (std::is_enum_v<T>) {
    return fmt::format("{}", static_cast<int>(value));
  } else {
    return fmt::format("{}", value);
  }
}
inline std::string value_text(const Matrix& m) {
  return fmt::format("{}x{}:{}@{}", m.N, m.K, name_of(m.dtype), value_text(m.data));
}
inline std::string value_text(const StateData& s) {
  return fmt::format("{}@{}", name_of(s.dtype), value_text(s.data));
}
inline std::string value_text(const PagedData& p) {
  return fmt::format("{}@{} {} pages of {} by {}x{}", name_of(p.dtype), value_text(p.data), p.pages,
                     p.page_bytes, value_text(p.table), p.most);
}
inline std::string value_text(const Ragged& r) {
  return fmt::format("[{} {} {} {} {}]", r.num_seqs, r.rows, r.max_len, value_text(r.begin),
                     value_text(r.slot));
}
inline std::string value_text(const DeferredRmsNorm& n) {
  return fmt::format("<{} {} {}>", value_text(n.x), value_text(n.squares), value_text(n.scales));
}

template <typename... Values>
std::string values_text(const Values&... values) {
  std::string text;
  ((text += ' ', text += value_text(values)), ...);
  return text;
}

inline std::string text_of(const EmbedArgs& a) { return values_text(a.rows, a.E, a.token, a.x); }
inline std::string text_of(const GatherRowsArgs& a) {
  return values_text(a.count, a.D, a.x, a.index, a.y);
}
inline std::string text_of(const RmsNormArgs& a) {
  return values_text(a.rows, a.D, a.eps, a.x, a.w, a.y);
}
inline std::string text_of(const LoraArgs& a) {
  return values_text(a.layer, a.K, a.N, a.groups.size(), a.x, a.y);
}
inline std::string text_of(const CausalConv1dArgs& a) {
  return values_text(a.seqs, a.D, a.width, a.silu, a.x_stride, a.x, a.w, a.bias, a.state, a.y,
                     a.y_bf16);
}
inline std::string text_of(const LinearArgs& a) {
  return values_text(a.rows, a.W, a.bias, a.residual, a.x, a.y, a.norm, a.norm_eps, a.swiglu,
                     a.soft_cap, a.x_bf16, a.y_bf16, a.next_norm, a.next, a.deferred) +
         (a.conv ? " conv" + text_of(*a.conv) : "") +
         (a.activation == Activation::kIdentity ? "" : " f" + values_text(a.activation));
}
inline std::string text_of(const MlstmArgs& a) {
  return values_text(a.seqs, a.H, a.DK, a.DV, a.chunk, a.gate_soft_cap, a.eps, a.stride, a.q, a.k,
                     a.v, a.i, a.f, a.C, a.n, a.m, a.h, a.o, a.head_norm, a.head_norm_eps,
                     a.h_bf16);
}
inline std::string text_of(const HeadNormGateArgs& a) {
  return values_text(a.rows, a.H, a.DV, a.eps, a.o_stride, a.h, a.o, a.w, a.y, a.y_bf16);
}
inline std::string text_of(const SoftCapArgs& a) { return values_text(a.count, a.cap, a.x); }
inline std::string text_of(const SelectiveScanArgs& a) {
  return values_text(a.seqs, a.D, a.N, a.R, a.chunk, a.norm_eps, a.x_stride, a.params_stride,
                     a.z_stride, a.x, a.params, a.z, a.dt_proj, a.dt_bias, a.A, a.skip, a.h,
                     a.scratch, a.y, a.y_bf16);
}
inline std::string text_of(const SsdArgs& a) {
  return values_text(a.seqs, a.H, a.P, a.N, a.G, a.chunk, a.dt_min, a.dt_max, a.xBC_stride,
                     a.dt_stride, a.z_stride, a.x, a.B, a.C, a.dt, a.z, a.dt_bias, a.A, a.skip, a.h,
                     a.y, a.next.x == nullptr ? nullptr : a.next_norm, a.next) +
         (a.held.every == 1
              ? ""
              : values_text(a.held.every, a.held.before, a.held_u, a.held_B, a.held_a));
}
inline std::string text_of(const HeldRowsArgs& a) {
  return values_text(a.seqs, a.chunk, a.every, a.count, a.before);
}
inline std::string text_of(const LinearRecurrenceArgs& a) {
  return values_text(a.seqs, a.D, a.chunk, a.c_stride, a.x_stride, a.c, a.x, a.state, a.y);
}
inline std::string text_of(const GatedRmsNormArgs& a) {
  return values_text(a.rows, a.D, a.G, a.eps, a.x_stride, a.z_stride, a.y_stride, a.x, a.z, a.w,
                     a.y, a.y_bf16);
}
inline std::string text_of(const GlaArgs& a) {
  return values_text(a.seqs, a.H, a.DK, a.DV, a.chunk, a.decay, a.scale, a.eps, a.bounded,
                     a.q_stride, a.k_stride, a.v_stride, a.g_stride, a.q, a.k, a.v, a.g, a.i, a.S,
                     a.z, a.o);
}
inline std::string text_of(const GlaGateArgs& a) {
  return values_text(a.rows, a.W, a.bias, a.scale, a.floor, a.low_stride, a.low, a.g);
}
inline std::string text_of(const HgrnGateArgs& a) {
  return values_text(a.rows, a.D, a.f_stride, a.f, a.bound, a.g, a.k);
}
inline std::string text_of(const HeadRmsNormArgs& a) {
  return values_text(a.rows, a.H, a.DV, a.eps, a.gate_stride, a.x, a.w, a.gate, a.y, a.y_bf16) +
         (a.f == Activation::kSilu ? "" : values_text(a.f)) +
         (a.x_stride == 0 ? "" : values_text(a.x_stride, a.x_head_stride));
}
inline std::string text_of(const PositionsArgs& a) {
  return values_text(a.seqs, a.count, a.position);
}
inline std::string text_of(const RotaryArgs& a) {
  return values_text(a.rows, a.H, a.D, a.stride, a.position, a.frequency, a.x) +
         (a.head_stride == 0 ? "" : values_text(a.head_stride));
}
inline std::string text_of(const ActivationArgs& a) {
  return values_text(a.rows, a.width, a.f, a.scale, a.floor, a.x_stride, a.y_stride, a.x, a.y) +
         (a.y_bf16 == nullptr ? "" : values_text(a.y_bf16));
}
inline std::string text_of(const RnnArgs& a) {
  return values_text(a.seqs, a.cell, a.H, a.DH, a.n_min, a.x_stride, a.x, a.R, a.b, a.h, a.c, a.n,
                     a.m, a.y);
}
inline std::string text_of(const LayerNormArgs& a) {
  return values_text(a.rows, a.D, a.G, a.eps, a.x, a.w, a.b, a.residual, a.y, a.sum, a.y_bf16);
}
inline std::string text_of(const HeadwiseLinearArgs& a) {
  return values_text(a.rows, a.H, a.W, a.x_stride, a.y_stride, a.x, a.y, a.bias);
}
inline std::string text_of(const GluArgs& a) {
  return values_text(a.rows, a.F, a.f, a.gate_up, a.y);
}
inline std::string text_of(const SkipGateArgs& a) {
  return values_text(a.rows, a.D, a.x_stride, a.z_stride, a.h, a.skip, a.x, a.z, a.y);
}
inline std::string text_of(const AddArgs& a) { return values_text(a.count, a.a, a.b, a.y); }
inline std::string text_of(const TokenShiftArgs& a) {
  std::string mixes;
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    mixes += values_text(a.mu[i], a.y[i], a.y_bf16[i]);
  }
  return values_text(a.seqs, a.D, a.n, a.x_stride, a.x, a.state) + mixes +
         (a.norm == nullptr ? "" : " norm" + values_text(a.norm, a.norm_bias, a.norm_eps));
}
inline std::string text_of(const Rwkv7GateArgs& a) {
  return values_text(a.rows, a.H, a.N, a.k_k, a.k_a, a.v_first, a.m, a.w, a.a, a.k, a.v, a.kk);
}
inline std::string text_of(const HeadNormBonusArgs& a) {
  return values_text(a.rows, a.H, a.N, a.eps, a.o, a.r, a.k, a.v, a.g, a.r_k, a.w, a.b, a.y,
                     a.y_bf16);
}
inline std::string text_of(const Rwkv7Args& a) {
  return values_text(a.seqs, a.H, a.N, a.chunk, a.stride, a.r, a.lw, a.k, a.v, a.kk, a.alpha, a.S,
                     a.o) +
         (a.gate ? " gate" + text_of(*a.gate) : "") + (a.out ? " out" + text_of(*a.out) : "");
}
inline std::string text_of(const DeltaGateArgs& a) {
  return values_text(a.rows, a.H, a.HK, a.DK, a.decays, a.norm, a.eps, a.beta_scale, a.qk_stride,
                     a.b_stride, a.a_stride, a.b, a.a, a.A, a.dt_bias, a.q, a.k, a.beta, a.g);
}
inline std::string text_of(const DeltaRuleArgs& a) {
  return values_text(a.seqs, a.H, a.HK, a.DK, a.DV, a.chunk, a.decay, a.scale, a.q_stride,
                     a.k_stride, a.v_stride, a.g_stride, a.beta_stride, a.q, a.k, a.v, a.g, a.beta,
                     a.S, a.o, a.bounded_beta);
}
inline std::string text_of(const RgLruArgs& a) {
  return values_text(a.seqs, a.D, a.chunk, a.branch_stride, a.u, a.i, a.r, a.branch, a.rate,
                     a.position, a.h, a.y);
}
inline std::string text_of(const RingAttentionArgs& a) {
  return values_text(a.seqs, a.H, a.HK, a.D, a.W, a.scale, a.q_stride, a.k_stride, a.v_stride, a.q,
                     a.k, a.v, a.position, a.ring_k, a.ring_v, a.o);
}
inline std::string text_of(const AppendArgs& a) {
  return values_text(a.seqs, a.HK, a.D, a.k_stride, a.v_stride, a.k, a.v, a.position, a.keys,
                     a.values);
}
inline std::string text_of(const PagedAttentionArgs& a) {
  return values_text(a.seqs, a.H, a.HK, a.D, a.scale, a.q_stride, a.q, a.position, a.keys, a.values,
                     a.o, a.gate, a.gate_stride, a.gate_head_stride, a.q_head_stride);
}
inline std::string text_of(const RouterArgs& a) {
  return values_text(a.rows, a.E, a.top, a.scores, a.renormalised, a.scale, a.groups, a.top_groups,
                     a.stride, a.logits, a.correction, a.expert, a.weight, a.begin, a.pair);
}
inline std::string text_of(const ExpertLinearArgs& a) {
  return values_text(a.rows, a.top, a.E, a.W, a.begin, a.pair, a.weight, a.x, a.y);
}
inline std::string text_of(const FeatureMapArgs& a) {
  return values_text(a.rows, a.H, a.D, a.map, a.sum_eps, a.x_stride, a.x, a.y);
}

}  // namespace recurve::testing
