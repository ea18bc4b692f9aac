#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// Keys or values of one layer that are stored for all tokens of a session, in pages: those of the
// token at position x are in page table[slot][x / kPageTokens], as token x % kPageTokens. Slot 0
// has no pages: nothing of its rows is stored or read. Page 0 is scratch: no session has it.
struct PagedData {
  void* data = nullptr;            // of page 0; page p is p * page_bytes behind
  DType dtype = DType::kF32;       // F32 or BF16
  int64_t page_bytes = 0;          // to the next page, which has other arrays too
  const int32_t* table = nullptr;  // (slots + 1, most)
  int32_t most = 0;                // pages of a slot
  int32_t pages = 0;               // in the memory, page 0 among them: entries of table are less
};
inline constexpr int64_t kPageTokens = 64;

// Stores the keys and values of new tokens, each in the page of its position; rounded to nearest
// even where pages are BF16. In a page keys lie channel by channel and values token by token: both
// are read in order, and no score and no output is a sum over the lanes of a vector. No two slots
// of a call write to the same page.
struct AppendArgs {
  Ragged seqs;
  int HK;                   // heads of keys and values
  int D;                    // channels of a head
  int k_stride;             // floats from a row of k to the next
  int v_stride;             // of v
  const float* k;           // (rows, HK, D)
  const float* v;           // (rows, HK, D)
  const int32_t* position;  // (rows) in the session, one after the other in a sequence
  PagedData keys;           // a page: (HK, D, kPageTokens)
  PagedData values;         // a page: (HK, kPageTokens, D), of the same type
};

// Causal attention over all tokens of a session, whose keys and values are in pages, those of the
// rows themselves among them. For the row at position p of a session,
//   s_x = scale q_p k_x                                                  for x = 0 ... p
//   o_p = sum_x exp(s_x - max s) v_x / sum_x exp(s_x - max s)  (sigmoid(gate), if there is one)
// with heads of queries in groups that share a head of keys and values: head h has keys of h / (H /
// HK).
//
// The keys are cut at multiples of kAttentionPart. Each part has its own maximum, sum of weights
// and weighted sum of values; these are joined from the oldest part to the newest. So bits follow
// from the row and from what is stored, not from how a text was split between calls, which pages it
// is in, what else is in the batch, or the number of threads. Source: Vaswani et al. 2017,
// sec. 3.2; Shazeer 2019 for shared keys; Dao et al. 2023 (Flash decoding) for parts that are
// joined; the gate: Qiu et al. 2025 (Gated attention), G1.
struct PagedAttentionArgs {
  Ragged seqs;
  int H;                        // heads of queries
  int HK;                       // heads of keys and values; H is a multiple of it
  int D;                        // channels of a head
  float scale;                  // of products
  int q_stride;                 // floats from a row of q to the next
  const float* q;               // (rows, H, D)
  const int32_t* position;      // (rows) in the session, one after the other in a sequence
  PagedData keys;               // a page: (HK, D, kPageTokens)
  PagedData values;             // a page: (HK, kPageTokens, D), of the same type
  float* o;                     // (rows, H, D), dense; does not overlap the inputs
  const float* gate = nullptr;  // (rows, H, D) before the sigmoid, or null
  int gate_stride = 0;          // floats from a row of gate to the next
  int gate_head_stride = 0;     // from a head to the next
  int q_head_stride = 0;        // floats from a head of q to the next; 0: D

  // The query of a head.
  const float* q_at(int64_t row, int64_t head) const {
    return q + row * q_stride + head * (q_head_stride == 0 ? D : q_head_stride);
  }
};
inline constexpr int kAttentionPart = 256;

struct AppendKernel {
  static constexpr const char* kName = "append";
  Op<AppendArgs> append;
  static constexpr auto kOp = &AppendKernel::append;
};

struct PagedAttentionKernel {
  static constexpr const char* kName = "paged_attention";
  Op<PagedAttentionArgs> paged_attention;
  static constexpr auto kOp = &PagedAttentionKernel::paged_attention;
};

}  // namespace recurve
