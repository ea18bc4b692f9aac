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

void head(const Head& head, const StepBatch& batch, const Residual& x, float* picked, float* logits,
          const Kernels& kernels, Stream& stream) {
  if (batch.num_logits == 0) return;
  LinearArgs args{.rows = batch.num_logits,
                  .W = head.W,
                  .y = logits,
                  .norm = head.norm->data(),
                  .norm_eps = head.eps,
                  .soft_cap = head.soft_cap};
  const float* rows = rows_with_logits(batch, head.W.K, x.x(), picked, kernels, stream);
  if (rows == x.x()) {
    args = x.read(args);
  } else {
    args.x = rows;
  }
  kernels.linear(args, stream);
}

}  // namespace recurve
