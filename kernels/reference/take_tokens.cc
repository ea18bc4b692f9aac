#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const TakeTokensArgs& args, Stream&) {
  for (int b = 0; b < args.num_seqs; ++b) {
    args.slot[b] = args.planned[b];
    if (args.decodes[b] == 0) continue;
    const SampleProgress& progress = args.progress[args.planned[b]];
    if (progress.ended != 0) args.slot[b] = 0;
    args.tokens[args.begin[b]] = progress.ended != 0 ? 0 : progress.token;
  }
}

}  // namespace recurve::reference
