#pragma once
#include "kernels/arena.h"
#include "model/model.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// From the residual stream to logits, for the rows that want them:
// logits = cap tanh( W RMSNorm(x) / cap ).
struct Head {
  const VectorWeights* norm;  // (D)
  Matrix W;                   // (V, D)
  float eps;
  float soft_cap;  // 0: none
};

// picked: scratch, (num_logits, D).
void head(const Head& head, const StepBatch& batch, const float* x /* (rows, D) */, float* picked,
          float* logits /* (num_logits, V) */, const Kernels& kernels, Stream& stream);

}  // namespace recurve
