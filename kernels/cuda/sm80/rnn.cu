#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rnn.h"

namespace recurve::cuda::sm80 {

void rnn(const RnnArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (rnn_fits(args)) {
    rnn_in_registers(args, use(stream));
  } else {
    rnn_row_by_row(args, use(stream));
  }
  expect_launched("rnn");
}

}  // namespace recurve::cuda::sm80
