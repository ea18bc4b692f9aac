#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rnn/rnn.h"

namespace recurve::cuda::sm80 {

void run(const RnnArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (rnn_fits(args)) {
    rnn_in_registers(args, stream);
  } else if (rnn_has_tiles(args)) {
    rnn_by_tiles(args, stream);
  } else {
    rnn_row_by_row(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
