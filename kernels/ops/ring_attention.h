#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// Attention over the last W rows of a session, itself among them: the keys and values of as many
// are the state, whose size is fixed. For the row at position p of a session,
//   s_x = scale q_p k_x   for x = max(0, p - W + 1) ... p
//   o_p = sum_x exp(s_x - max s) v_x / sum_x exp(s_x - max s)
// with heads of queries in groups that share a head of keys and values: head h has keys of h / (H /
// HK). The ring keeps the row at position x in its place x mod W, keys turned already. Rows of this
// call see those before them from where they are: the ring is overwritten when all have been read.
//
// Sums over x go from the oldest row to the newest, in an order that follows from p alone and not
// from where rows come from. So any cut of a sequence between calls gives the same bits.
// Source: Beltagy et al. 2020 (Longformer), sec. 3.1, causal; Shazeer 2019 for shared keys; De et
// al. 2024 (Griffin), sec. 2.3. The window is transformers' (i - j < W); Google's own code of
// RecurrentGemma has one row more.
struct RingAttentionArgs {
  Ragged seqs;
  int H;                    // heads of queries
  int HK;                   // heads of keys and values; H is a multiple of it
  int D;                    // channels of a head
  int W;                    // rows of the window
  float scale;              // of products
  int q_stride;             // floats from a row of q to the next
  int k_stride;             // of k
  int v_stride;             // of v
  const float* q;           // (rows, H, D)
  const float* k;           // (rows, HK, D)
  const float* v;           // (rows, HK, D)
  const int32_t* position;  // (rows) in the session
  float* ring_k;            // (slots, W, HK, D) read and written in place
  float* ring_v;            // (slots, W, HK, D) the same
  float* o;                 // (rows, H, D), dense; does not overlap the inputs
};

struct RingAttentionKernel {
  static constexpr const char* kName = "ring_attention";
  Op<RingAttentionArgs> ring_attention;
  static constexpr auto kOp = &RingAttentionKernel::ring_attention;
};

}  // namespace recurve
