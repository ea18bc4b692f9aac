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

void copy_hidden(const StepBatch& batch, int64_t D, const float* x, const Kernels& kernels,
                 Stream& stream) {
  kernels.gather_rows({.count = batch.num_hidden,
                       .D = static_cast<int>(D),
                       .x = x,
                       .index = batch.hidden_rows,
                       .y = batch.hidden},
                      stream);
}

void head(const Head& head, const StepBatch& batch, const Residual& x, float* picked, float* logits,
          const Kernels& kernels, Stream& stream) {
  if (batch.num_hidden > 0) {
    copy_hidden(batch, head.W.K, x.x(), kernels, stream);
    kernels.rms_norm({.rows = batch.num_hidden,
                      .D = static_cast<int>(head.W.K),
                      .eps = head.eps,
                      .x = batch.hidden,
                      .w = head.norm->data(),
                      .y = batch.hidden},
                     stream);
  }
  if (batch.num_logits == 0) return;
  LinearArgs args = x.read(head.reader(), head.eps, {.y = logits, .soft_cap = head.soft_cap});
  args.rows = batch.num_logits;
  args.x = rows_with_logits(batch, head.W.K, x.x(), picked, kernels, stream);
  if (args.x != x.x()) args.deferred = {};  // that is of other rows
  kernels.linear(args, stream);
}

}  // namespace recurve
