#include "model/layers/head.h"

namespace recurve {

void head(const Head& head, const StepBatch& batch, const float* x, float* picked, float* logits,
          const Kernels& kernels, Stream& stream) {
  if (batch.num_logits == 0) return;
  const int D = static_cast<int>(head.W.K), count = batch.num_logits;
  kernels.gather_rows({.count = count, .D = D, .x = x, .index = batch.logit_rows, .y = picked},
                      stream);
  kernels.rms_norm(
      {.rows = count, .D = D, .eps = head.eps, .x = picked, .w = head.norm->data(), .y = picked},
      stream);
  kernels.linear({.rows = count, .W = head.W, .x = picked, .y = logits}, stream);
  if (head.soft_cap > 0) {
    kernels.soft_cap({.count = count * head.W.N, .cap = head.soft_cap, .x = logits}, stream);
  }
}

}  // namespace recurve
