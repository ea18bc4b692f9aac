#include "model/layers/head.h"

namespace recurve {

const float* rows_with_logits(const StepBatch& batch, int64_t D, const float* x, float* picked,
                              const Kernels& kernels, Stream& stream) {
  if (batch.num_logits == batch.seqs.rows) return x;
  kernels.gather_rows({.count = batch.num_logits,
                       .D = static_cast<int>(D),
                       .x = x,
                       .index = batch.logit_rows,
                       .y = picked},
                      stream);
  return picked;
}

void head(const Head& head, const StepBatch& batch, const float* x, float* picked, float* logits,
          const Kernels& kernels, Stream& stream) {
  if (batch.num_logits == 0) return;
  kernels.linear({.rows = batch.num_logits,
                  .W = head.W,
                  .x = rows_with_logits(batch, head.W.K, x, picked, kernels, stream),
                  .y = logits,
                  .norm = head.norm->data(),
                  .norm_eps = head.eps,
                  .soft_cap = head.soft_cap},
                 stream);
}

}  // namespace recurve
