#include "kernels/cpu/table.h"

namespace recurve::cpu {

void run(const HeldRowsArgs& args, Stream&) {
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) count_held_rows(args, seq);
}

}  // namespace recurve::cpu
