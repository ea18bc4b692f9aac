#pragma once
#include "model/layers/residual.h"

namespace recurve {

// From the residual stream to logits, for the rows that want them:
// logits = cap tanh( W RMSNorm(x) / cap ).
struct Head {
  const VectorWeights* norm;  // (D)
  Matrix W;                   // (V, D)
  float eps;
  float soft_cap;  // 0: none

  Residual::Reader reader() const { return {W, norm}; }
};

// Who reads the residual stream after block b.
template <typename Block>
Residual::Reader reader_after(const std::vector<Block>& blocks, size_t b, const Head& last) {
  return b + 1 < blocks.size() ? blocks[b + 1].reader() : last.reader();
}

// The rows of x whose logits are wanted: x itself where all are, as when every sequence decodes, or
// gathered in `picked`, scratch of (num_logits, D).
const float* rows_with_logits(const StepBatch& batch, int64_t D, const float* x, float* picked,
                              const Kernels& kernels, Stream& stream);

// The rows of x whose hidden states are wanted, copied to batch.hidden, before the final norm.
void copy_hidden(const StepBatch& batch, int64_t D, const float* x, const Kernels& kernels,
                 Stream& stream);

// Writes the logits, and the hidden states that are wanted. picked: scratch, (num_logits, D).
void head(const Head& head, const StepBatch& batch, const Residual& x, float* picked,
          float* logits /* (num_logits, V) */, const Kernels& kernels, Stream& stream);

}  // namespace recurve
