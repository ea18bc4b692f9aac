#include "model/layers/head.h"

namespace recurve {

void head(const Head& head, const StepBatch& batch, const float* x, float* picked, float* logits,
          const Kernels& kernels, Stream& stream) {
  if (batch.num_logits == 0) return;
  const int D = static_cast<int>(head.W.K), count = batch.num_logits;
  kernels.gather_rows({.count = count, .D = D, .x = x, .index = batch.logit_rows, .y = picked},
                      stream);
  kernels.linear({.rows = count,
                  .W = head.W,
                  .x = picked,
                  .y = logits,
                  .norm = head.norm->data(),
                  .norm_eps = head.eps,
                  .soft_cap = head.soft_cap},
                 stream);
}

}  // namespace recurve
