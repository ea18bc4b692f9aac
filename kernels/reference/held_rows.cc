#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const HeldRowsArgs& args, Stream&) {
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) count_held_rows(args, seq);
}

}  // namespace recurve::reference
